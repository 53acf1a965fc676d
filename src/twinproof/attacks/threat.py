"""What an attacker may do: move an input by at most ``size`` in a norm, without leaving the range of the inputs.

Two pieces of code that share nothing but the numbers: ``Threat.around(...).admit`` brings candidates back, and ``violations``
looks at what came out. The loop runs both after every step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.attacks.norms import Ball, ball_of
from twinproof.errors import ConfigError

_ORDERS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}


class Neighbourhood(ABC):
    """The points that a threat allows around each row of a batch; prepared once, used at every step."""

    @abstractmethod
    def admit(self, candidate: Tensor) -> Tensor:
        """The candidates, each moved into its neighbourhood; NaN coordinates go back to the original's."""


@dataclass(frozen=True)
class Threat:
    """Perturbations of at most ``size`` in ``norm`` ('linf', 'l2', 'l1'), in the units of the inputs, within [low, high].

    The ends of the range are rounded to the precision of the inputs, so that an input at an end is inside.

    Guarantees
        What ``admit`` returns lies in the range, and its distance to the original, taken in float64 over the numbers as they
        are stored, is at most ``size``. Proof: the candidate is clipped to the range and projected in float64, both of which
        move every coordinate towards the original or leave it; the result is rounded towards the original as well. So no
        coordinate is further away than in the float64 projection, which is shorter than the size by more than any order of
        summation can lose.
    """

    norm: str
    size: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        ball_of(self.norm)
        if not (self.size >= 0 and math.isfinite(self.size)):
            raise ConfigError(
                "an attack of this size makes no sense", where="size", got=self.size, wanted="a finite number >= 0"
            )
        if not (self.low < self.high and math.isfinite(self.low) and math.isfinite(self.high)):
            raise ConfigError(
                "the range of the inputs is empty", where="low, high", got=f"[{self.low}, {self.high}]", wanted="low below high"
            )

    @property
    def ball(self) -> Ball:
        """The ball of the norm."""
        return ball_of(self.norm)

    def around(self, original: Tensor) -> Neighbourhood:
        """What is allowed around each row of ``original``."""
        return _Box(self, original) if self.norm == "linf" else _Rounded(self, original)

    def admit(self, candidate: Tensor, original: Tensor) -> Tensor:
        """``candidate`` brought into the range and the ball around ``original``."""
        return self.around(original).admit(candidate)


class _Box(Neighbourhood):
    """linf and the range make one box; with its corners rounded inwards once, a step costs one clamp."""

    def __init__(self, threat: Threat, original: Tensor) -> None:
        exact = original.double()
        up, down = (exact + threat.size).to(original.dtype), (exact - threat.size).to(original.dtype)
        up = torch.where(up.double() - exact > threat.size, up.nextafter(original), up)
        down = torch.where(exact - down.double() > threat.size, down.nextafter(original), down)
        self._original = original
        self._low, self._high = down.clamp(min=threat.low), up.clamp(max=threat.high)

    def admit(self, candidate: Tensor) -> Tensor:
        return torch.where(candidate.isnan(), self._original, candidate).clamp(self._low, self._high)


class _Rounded(Neighbourhood):
    """l2 and l1: clip to the range, project in float64, round towards the original."""

    def __init__(self, threat: Threat, original: Tensor) -> None:
        self._threat, self._ball = threat, threat.ball
        self._original, self._exact = original, original.double()

    def admit(self, candidate: Tensor) -> Tensor:
        threat = self._threat
        known = torch.where(candidate.isnan(), self._original, candidate).clamp(threat.low, threat.high)
        delta = self._ball.project(known.double() - self._exact, threat.size)
        rounded = (self._exact + delta).to(known.dtype)
        beyond = (rounded.double() - self._exact).abs() > delta.abs()
        # Clipped again, towards the original too: float64 loses a coordinate that is tiny beside what was subtracted from it.
        return torch.where(beyond, rounded.nextafter(self._original), rounded).clamp(threat.low, threat.high)


def violations(threat: Threat, candidate: Tensor, original: Tensor) -> Tensor:
    """Which rows of ``candidate`` an attacker was not allowed: too far away in float64, out of the range, or not a number.

    A function of the threat's four numbers alone, so that no subclass can change what is checked.
    """
    delta = (candidate.double() - original.double()).flatten(1)
    length: Tensor = torch.linalg.vector_norm(delta, ord=_ORDERS[threat.norm], dim=1)
    inside = ((candidate >= threat.low) & (candidate <= threat.high)).flatten(1).all(dim=1)
    allowed = (length <= threat.size) & inside
    return ~allowed
