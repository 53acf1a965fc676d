"""FGSM, I-FGSM, MIM and PGD: one ascent engine.

| name | steps | start | momentum | step | source |
| --- | --- | --- | --- | --- | --- |
| ``fgsm`` | 1 | the input | none | size | Goodfellow, Shlens and Szegedy, ICLR 2015 |
| ``ifgsm`` | n | the input | none | size / n | Kurakin, Goodfellow and Bengio, ICLR 2017 |
| ``mim`` | n | the input | decay 1 | size / n | Dong et al., CVPR 2018 |
| ``pgd`` | n | random in the ball | none | 2.5 size / n | Madry et al., ICLR 2018 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from twinproof import checks
from twinproof.attacks.objective import Draws, Mean, Objective, scores_of, untouched
from twinproof.attacks.threat import Threat, per_row, unit_l1, violations
from twinproof.compute.devices import Captured
from twinproof.errors import CheckFailed, ConfigError
from twinproof.extensions import Group, find, names

LONGEST_STEP = 1e6
"""Of inputs in [0, 1]: beyond it float32 has no digits left for the input."""


class Keep(StrEnum):
    """Which of the visited points is returned."""

    BEST = "best"  # the strongest, the input itself included
    LAST = "last"  # the last one, as the papers and their code do


@dataclass(frozen=True)
class Attack:
    """How to search the ball; nothing here depends on the norm or its size, which are the threat's.

    ``step_size`` is in the units of the inputs; without it a step is ``relative_step`` times the threat's size. ``momentum``
    is the share of the gathered direction that survives a step (None: only the newest gradient counts). ``spread`` is the
    share of coordinates that an l1 step moves, at least one of them.
    """

    steps: int = 1
    step_size: float | None = None
    relative_step: float = 1.0
    momentum: float | None = None
    random_start: bool = False
    restarts: int = 1
    keep: Keep = Keep.BEST
    spread: float = 0.01

    def __post_init__(self) -> None:
        checks.whole(1, steps=self.steps, restarts=self.restarts)
        step_size = 1.0 if self.step_size is None else self.step_size
        checks.positive(relative_step=self.relative_step, step_size=step_size)
        checks.between(0, LONGEST_STEP, relative_step=self.relative_step, step_size=step_size)
        checks.between(0, 1, momentum=self.momentum or 0.0, spread=self.spread)
        checks.one_of(tuple(Keep), keep=self.keep)
        if self.restarts > 1 and (self.keep == Keep.LAST or not self.random_start):
            raise ConfigError(
                "restarts would be wasted",
                where="restarts",
                got=f"restarts={self.restarts}, random_start={self.random_start}, keep={self.keep}",
                wanted="random starts, and the best point kept",
                fix="restarts=1, or random_start=True and keep='best'",
            )

    def step_length(self, threat: Threat) -> float:
        """How far one step goes, in the units of the inputs."""
        return self.relative_step * threat.size if self.step_size is None else self.step_size

    def propose(self, points: Tensor, gradient: Tensor, gathered: Tensor, threat: Threat) -> Tensor:
        """Where to go from ``points``; may be anywhere, the loop brings it back.

        ``gradient`` points to where the attacker wants to go, and is zero for rows without a usable one, which stay.
        ``gathered`` is the momentum, changed in place. A method of your own overrides this.
        """
        direction = gradient
        if self.momentum is not None:
            direction = gathered.mul_(self.momentum).add_(unit_l1(gradient))
            direction = direction * per_row(gradient.flatten(1).any(dim=1), points)
        blocked = None
        if threat.norm == "l1":  # the others have no use for it
            blocked = torch.where(direction > 0, points >= threat.high, points <= threat.low)
        return points.add(threat.ball.steepest(direction, blocked, self.spread), alpha=self.step_length(threat))


def fgsm(*, random_start: bool = False, keep: Keep = Keep.BEST) -> Attack:
    """The fast gradient sign method, and its kin in l2 and l1: one step of the whole size."""
    return Attack(random_start=random_start, keep=keep)


def ifgsm(steps: int = 10, *, step_size: float | None = None, keep: Keep = Keep.BEST) -> Attack:
    """The iterative method: ``steps`` steps which together could just cross the radius."""
    return Attack(steps, step_size=step_size, relative_step=1 / max(steps, 1), keep=keep)


def mim(steps: int = 10, *, decay: float = 1.0, step_size: float | None = None, keep: Keep = Keep.BEST) -> Attack:
    return Attack(steps, step_size=step_size, relative_step=1 / max(steps, 1), momentum=decay, keep=keep)


def pgd(
    steps: int = 40, *, restarts: int = 1, step_size: float | None = None, random_start: bool = True, keep: Keep = Keep.BEST
) -> Attack:
    """Projected gradient descent from random points of the ball."""
    relative = 2.5 / max(steps, 1)
    return Attack(steps, step_size, relative, random_start=random_start, restarts=restarts, keep=keep)


METHODS: dict[str, Callable[..., Attack]] = {"fgsm": fgsm, "ifgsm": ifgsm, "mim": mim, "pgd": pgd}
"""The library's methods by the names that the command line uses."""


def attack_names() -> tuple[str, ...]:
    """All methods, those that other packages register too; nothing is loaded."""
    return tuple(dict.fromkeys([*METHODS, *names(Group.ATTACKS)]))


def attack_named(name: str, **options: Any) -> Attack:
    """A method by its name, with its options; a name or an option that does not exist is an error."""
    method = METHODS.get(name) or find(Group.ATTACKS, name)
    if method is None:
        raise ConfigError("unknown attack", where="attack", got=name, wanted=", ".join(attack_names()))
    try:
        made = method(**options)
    except TypeError as error:
        raise ConfigError(
            f"{name} has no such option", where="attack", got=error, wanted="the options of this attack"
        ) from error
    if not isinstance(made, Attack):
        raise ConfigError("this is not an attack", where="attack", got=f"{name}: {type(made).__name__}", wanted="an Attack")
    return made


# Rows of one pass over several draws; activations are kept for the way back, so these are fewer than in CERTIFY.
_ROWS = {"cpu": 1024, "cuda": 32_768}


@dataclass(frozen=True)
class Look:
    """What was seen at one point of each row: loss, predicted class, and the loss's gradient where it was asked for."""

    losses: Tensor
    predictions: Tensor
    gradient: Tensor | None = None


@contextmanager
def global_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the generators that random layers draw from, and gives them back as they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)  # this device alone: nobody would give the others' generators back
        yield


def device_of(objective: Objective, inputs: Tensor) -> torch.device:
    """Where the network is; with the inputs, where it has no parameters."""
    parameter = next(objective.model.parameters(), None)
    return inputs.device if parameter is None else parameter.device


def class_count(objective: Objective, inputs: Tensor) -> int:
    row = inputs[:1].to(device_of(objective, inputs))
    with untouched(objective.model), global_seed(0, row.device), torch.no_grad():
        return int(scores_of(objective.model, row).shape[1])


class Looker:
    """Looks at points around one batch; keeps the draws that an example's steps share.

    To be used with the network in ``untouched``.
    """

    def __init__(self, objective: Objective, inputs: Tensor, generator: torch.Generator, judge_seed: int = 0) -> None:
        self._objective, self._generator, self._judge_seed = objective, generator, judge_seed
        draws = objective.looking
        self._shared: Tensor | None = None
        if draws.shared:
            shape = (len(inputs), draws.count, *inputs.shape[1:])
            self._shared = torch.randn(shape, generator=generator, device=inputs.device, dtype=inputs.dtype).mul_(draws.sigma)

    def step(self, points: Tensor, labels: Tensor, *, predict: bool = True) -> Look:
        """Losses, gradients and, if wanted, predictions with the draws of one step; without, every prediction is 0."""
        return self._look(points, labels, self._objective.looking, self._generator, gradient=True, predict=predict)

    def judge(self, points: Tensor, labels: Tensor) -> Look:
        """Losses and predictions, every time with the same draws."""
        generator = torch.Generator(points.device).manual_seed(self._judge_seed)
        with global_seed(self._judge_seed, points.device):
            return self._look(points, labels, self._objective.judging, generator, gradient=False, predict=True)

    def _look(
        self, points: Tensor, labels: Tensor, draws: Draws, generator: torch.Generator, *, gradient: bool, predict: bool
    ) -> Look:
        """Chunk after chunk of draws; the sums of earlier chunks are all that is kept."""
        if len(points) == 0:  # not every network takes an empty batch
            return Look(points.new_empty(0), labels.new_empty(0), torch.empty_like(points) if gradient else None)
        whole: _Sum | None = None
        chunk = self._draws_at_once(points, draws)
        for first in range(0, draws.count, chunk):
            noise = self._noise(points, draws, first, min(chunk, draws.count - first), generator)
            part = self._chunk(points, labels, draws, noise, min(chunk, draws.count - first), gradient, predict)
            whole = part if whole is None else whole.plus(part, draws.mean)
        if whole is None:
            raise ValueError("an objective looks at least once")
        losses = whole.value if draws.mean is Mean.LOSS else whole.value + math.log(draws.count)
        return Look(losses, whole.tally.argmax(dim=1) if predict else torch.zeros_like(labels), whole.slope)

    def _noise(self, points: Tensor, draws: Draws, first: int, count: int, generator: torch.Generator) -> Tensor | None:
        if draws.shared and self._shared is not None:
            return self._shared[:, first : first + count]
        if draws.sigma == 0:
            return None
        shape = (len(points), count, *points.shape[1:])
        return torch.randn(shape, generator=generator, device=points.device, dtype=points.dtype).mul_(draws.sigma)

    def _chunk(
        self, points: Tensor, labels: Tensor, draws: Draws, noise: Tensor | None, count: int, gradient: bool, predict: bool
    ) -> _Sum:
        with torch.set_grad_enabled(gradient):
            leaf = points.detach().requires_grad_(gradient)
            copies = leaf.unsqueeze(1).expand(-1, count, *points.shape[1:]) if noise is None else leaf.unsqueeze(1) + noise
            scores = scores_of(self._objective.model, copies.reshape(-1, *points.shape[1:]))
            scores = scores.view(len(points), count, -1)
            logs = F.log_softmax(scores, dim=2)
            of_label = logs.gather(2, labels.view(-1, 1, 1).expand(-1, count, 1)).squeeze(2)
            value = -of_label.logsumexp(dim=1) if draws.mean is Mean.PROBABILITY else of_label.sum(dim=1) / -draws.count
            slope = torch.autograd.grad(value.sum(), leaf)[0] if gradient else None
        scores, logs = scores.detach(), logs.detach()
        tally = (_votes(scores) if draws.votes else logs.exp()).sum(dim=1) if predict else value.new_zeros(0)
        return _Sum(value.detach(), tally, slope)

    def _draws_at_once(self, points: Tensor, draws: Draws) -> int:
        rows = self._objective.rows or _ROWS["cuda" if points.device.type == "cuda" else "cpu"]
        return min(draws.count, max(1, rows // max(1, len(points))))


def _votes(scores: Tensor) -> Tensor:
    """One for the class of the highest score, zero for the others."""
    classes = torch.arange(scores.shape[2], device=scores.device)
    return (scores.argmax(dim=2, keepdim=True) == classes).to(scores.dtype)


@dataclass(frozen=True)
class _Sum:
    """Over some draws: their share of the mean of -log p, or -log of the sum of p; its gradient; the sum of what predicts."""

    value: Tensor
    tally: Tensor
    slope: Tensor | None

    def plus(self, other: _Sum, mean: Mean) -> _Sum:
        tally = self.tally + other.tally
        if mean is Mean.LOSS:
            slope = None if self.slope is None or other.slope is None else self.slope + other.slope
            return _Sum(self.value + other.value, tally, slope)
        # The gradient of log(a + b) weighs those of log a and log b with a's and b's shares; in logs nothing underflows.
        value = -torch.logaddexp(-self.value, -other.value)
        if self.slope is None or other.slope is None:
            return _Sum(value, tally, None)
        mine, theirs = (per_row((value - part.value).exp(), self.slope) for part in (self, other))
        return _Sum(value, tally, self.slope * mine + other.slope * theirs)


@dataclass(frozen=True)
class AttackResult:
    """The attacked inputs beside what the attacked objective says of them and of their originals.

    ``labels`` are those that were attacked: the true or predicted classes to get away from, or the ``targeted`` ones to reach.
    ``losses`` are cross-entropies of those labels; ``lengths`` the float64 lengths of the perturbations in the threat's norm.
    """

    inputs: Tensor
    labels: Tensor
    starting_losses: Tensor
    losses: Tensor
    starting_predictions: Tensor
    predictions: Tensor
    lengths: Tensor
    targeted: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> AttackResult:
        return AttackResult(**{name: getattr(self, name).to(device) for name in ROWS}, targeted=self.targeted)

    @property
    def success(self) -> Tensor:
        """Which attacked inputs have the target's class, or another class than their label."""
        return succeeds(self.predictions, self.labels, self.targeted)


ROWS = ("inputs", "labels", "starting_losses", "losses", "starting_predictions", "predictions", "lengths")
"""The fields that hold one row for each input."""


def succeeds(predictions: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    """Whether these predictions are what the attacker wanted."""
    return (predictions == labels) if targeted else (predictions != labels)


def joined(results: Sequence[AttackResult]) -> AttackResult:
    columns = {name: torch.cat([getattr(result, name) for result in results]) for name in ROWS}
    return AttackResult(**columns, targeted=results[0].targeted)


# Recording a step as a CUDA graph costs about as much as a dozen steps.
_WORTH_RECORDING = 40


class Search:
    """A batch under attack. All state lies in tensors that stay where they are, so that a GPU can replay the step.

    Guarantees
        After every step each point has been admitted by the threat and then checked by ``violations``, whatever the attack
        proposed; ``finish`` raises CheckFailed if a single check failed. Nothing is read from the device before. Memory does
        not grow with the number of steps. A row whose gradient is not finite does not move.
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
        capture: bool = False,
    ) -> None:
        """``best``, where there is one, is offered every point that a step looks at, at no extra gradient or look."""
        self._attack, self._looker, self._threat, self._generator = attack, looker, threat, generator
        self._original, self._labels, self._best = original, labels, best
        self._targeted = targeted
        self._allowed = threat.around(original)
        self.points, self._gathered = original.clone(), torch.zeros_like(original)
        self.violated = torch.zeros(len(original), dtype=torch.bool, device=original.device)
        worth = capture and attack.steps * attack.restarts >= _WORTH_RECORDING
        self._advance = Captured(self._step, original.device, [generator]) if worth else self._step

    def run(self) -> None:
        with torch.no_grad():  # a look takes its own gradient; a graph through the steps would grow with them
            self._start()
            for _ in range(self._attack.steps):
                self._advance()

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
        self.violated |= violations(self._threat, self.points, self._original)  # remembered on the device


class Best:
    """The strongest point seen of each row, beginning with the original.

    The kept loss is never below the starting one (above, with a target), and a NaN is never kept. A point that succeeds beats
    one that does not; then the higher loss wins.
    """

    def __init__(self, original: Tensor, look: Look, labels: Tensor, *, targeted: bool) -> None:
        self._labels, self._targeted = labels, targeted
        self._sign = -1.0 if targeted else 1.0
        self.points, self.predictions, self.losses = original.clone(), look.predictions.clone(), look.losses.clone()
        self._floor = look.losses * self._sign

    @property
    def look(self) -> Look:
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
