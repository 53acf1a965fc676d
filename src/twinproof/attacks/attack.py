"""FGSM, I-FGSM, MIM and PGD as four settings of one method: steps along a steepest direction, with or without momentum.

| name | steps | start | momentum | step | source |
| --- | --- | --- | --- | --- | --- |
| ``fgsm`` | 1 | the input | none | size | Goodfellow, Shlens and Szegedy, ICLR 2015 |
| ``ifgsm`` | n | the input | none | size / n | Kurakin, Goodfellow and Bengio, ICLR 2017 |
| ``mim`` | n | the input | decay 1 | size / n | Dong et al., CVPR 2018 |
| ``pgd`` | n | random in the ball | none | 2.5 size / n | Madry et al., ICLR 2018 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from twinproof.attacks.norms import per_row, unit_l1
from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError
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
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted="at least 1")
        lengths = [("relative_step", self.relative_step), ("step_size", 1.0 if self.step_size is None else self.step_size)]
        for name, length in lengths:
            if not 0 < length <= LONGEST_STEP:
                raise ConfigError(
                    "a step needs a length", where=name, got=length, wanted=f"a number above 0, at most {LONGEST_STEP:g}"
                )
        for name, share in (("momentum", self.momentum or 0.0), ("spread", self.spread)):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is no share", where=name, got=share, wanted="0..1")
        if self.keep not in tuple(Keep):
            raise ConfigError("unknown way to keep points", where="keep", got=self.keep, wanted=", ".join(Keep))
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
    """The momentum iterative method."""
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
