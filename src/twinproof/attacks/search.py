"""The one loop: look, keep what is better, step, bring back, check. FGSM, I-FGSM, MIM and PGD all run here."""

from __future__ import annotations

import torch
from torch import Tensor

from twinproof.attacks.attack import Attack
from twinproof.attacks.looking import Look, Looker
from twinproof.attacks.norms import per_row
from twinproof.attacks.result import succeeds
from twinproof.attacks.threat import Threat, violations
from twinproof.errors import CheckFailed
from twinproof.training.captured import Captured

# Recording a step as a CUDA graph costs about as much as a dozen steps.
_WORTH_RECORDING = 40


class Search:
    """A batch under attack. All state lies in tensors that stay where they are, so that a GPU can replay the step.

    Guarantees
        After every step each point has been admitted by the threat and then checked by ``violations`` (or, without
        ``check_steps``, when the caller asks), whatever the attack proposed; ``finish`` raises CheckFailed if a single check
        failed. Nothing is read from the device before. Memory does not grow with the number of steps. A row whose gradient is
        not finite does not move.
    """

    def __init__(
        self,
        attack: Attack,
        looker: Looker,
        original: Tensor,
        labels: Tensor,
        threat: Threat,
        generator: torch.Generator,
        *,
        targeted: bool,
        best: Best | None = None,
        check_steps: bool = True,
        capture: bool = False,
    ) -> None:
        """``best``, where there is one, is offered every point that a step looks at, at no extra gradient or look."""
        self._attack, self._looker, self._threat, self._generator = attack, looker, threat, generator
        self._original, self._labels, self._best = original, labels, best
        self._targeted, self._check_steps = targeted, check_steps
        self._allowed = threat.around(original)
        self.points, self._gathered = original.clone(), torch.zeros_like(original)
        self.violated = torch.zeros(len(original), dtype=torch.bool, device=original.device)
        worth = capture and attack.steps * attack.restarts >= _WORTH_RECORDING
        self._advance = Captured(self._step, original.device, [generator]) if worth else self._step

    def run(self) -> None:
        """All steps of one start."""
        with torch.no_grad():  # a look takes its own gradient; a graph through the steps would grow with them
            self._start()
            for _ in range(self._attack.steps):
                self._advance()

    def check(self) -> None:
        """Looks at where the points are; what is found is remembered on the device."""
        self.violated |= violations(self._threat, self.points, self._original)

    def finish(self) -> None:
        """Reads the checks, once."""
        if bool(self.violated.any()):
            raise left_the_threat(self._threat, self.violated)

    def _start(self) -> None:
        self._gathered.zero_()
        self.points.copy_(self._original)
        if self._attack.random_start:
            away = self._threat.ball.random(self._original, self._threat.size, self._generator)
            self._move(self._original + away)

    def _step(self) -> None:
        look = self._looker.step(self.points, self._labels, predict=self._best is not None)
        if self._best is not None:
            self._best.offer(self.points, look)
        if look.gradient is None:
            raise ValueError("a step needs a gradient")
        finite = per_row(look.gradient.isfinite().flatten(1).all(dim=1), look.gradient)
        gradient = torch.where(finite, -look.gradient if self._targeted else look.gradient, 0.0)
        self._move(self._attack.propose(self.points, gradient, self._gathered, self._threat))

    def _move(self, proposal: Tensor) -> None:
        self.points.copy_(self._allowed.admit(proposal))
        if self._check_steps:
            self.check()


class Best:
    """The strongest point seen of each row, beginning with the original.

    Guarantees
        The kept loss is never below the starting one (above, with a target), and a NaN is never kept. Among such points one
        that succeeds beats one that does not, and then the higher loss wins: with more than two classes a point of higher
        loss may still be classified right.
    """

    def __init__(self, original: Tensor, look: Look, labels: Tensor, *, targeted: bool) -> None:
        self._labels, self._targeted = labels, targeted
        self._sign = -1.0 if targeted else 1.0
        self.points, self.predictions, self.losses = original.clone(), look.predictions.clone(), look.losses.clone()
        self._floor = look.losses * self._sign

    @property
    def look(self) -> Look:
        """What was seen at the kept points."""
        return Look(self.losses, self.predictions)

    def offer(self, points: Tensor, look: Look, *, always: bool = False) -> None:
        """Keeps the rows that are better, or ``always`` all of them; on the device, in place."""
        gain, kept = look.losses * self._sign, self.losses * self._sign
        new = succeeds(look.predictions, self._labels, self._targeted)
        old = succeeds(self.predictions, self._labels, self._targeted)
        # Comparisons with NaN are false, so that a loss that is no number never gets in.
        better = (gain >= self._floor) & ((new & ~old) | ((new == old) & (gain > kept)))
        better = torch.ones_like(better) if always else better
        self.points.copy_(torch.where(per_row(better, points), points, self.points))
        self.losses.copy_(torch.where(better, look.losses, self.losses))
        self.predictions.copy_(torch.where(better, look.predictions, self.predictions))


def left_the_threat(threat: Threat, outside: Tensor) -> CheckFailed:
    """The error for points that an attack must not have reached."""
    return CheckFailed(
        "an attack left what its threat allows",
        where=f"{threat}, row {int(outside.nonzero()[0])}",
        got=f"{int(outside.sum())} of {len(outside)} rows outside the ball or the range",
        wanted="every visited point inside",
    )
