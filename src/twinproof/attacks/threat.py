"""What an attacker may do: the balls of l2, linf and l1, inside the range of the inputs.

Everything here works on perturbations (rows, *shape), each row by itself. Lengths and projections are in float64; rounding the
result to the inputs' own precision without leaving the ball is the business of ``twinproof.attacks.threat``.

Two pieces of code that share nothing but the numbers: ``Threat.around(...).admit`` brings candidates back, and ``violations``
looks at what came out. The loop runs both after every step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.errors import ConfigError

# A row is shrunk to this share of the size, so that the length stays below the size in whatever order a checker adds it up.
SHRINK = 1 - 2.0**-36


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """(rows,) -> (rows, 1, 1...), to multiply with ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _unit_largest(gradient: Tensor) -> Tensor:
    """Each row divided by its largest magnitude: squares of tiny gradients would underflow to a length of zero."""
    return gradient / _positive(torch.linalg.vector_norm(gradient.flatten(1), ord=math.inf, dim=1), gradient)


def _positive(lengths: Tensor, like: Tensor) -> Tensor:
    """Lengths to divide by: zero divided by the smallest normal number is still zero."""
    return per_row(lengths.clamp(min=torch.finfo(like.dtype).tiny), like)


def unit_l1(gradient: Tensor) -> Tensor:
    """Each row divided by the sum of its magnitudes; a row of zeros stays."""
    scaled = _unit_largest(gradient)
    return scaled / _positive(torch.linalg.vector_norm(scaled.flatten(1), ord=1, dim=1), gradient)


class Ball(ABC):
    """A norm ball around zero.

    ``project`` moves no coordinate away from zero or past it; rows that lie inside come back as they are, bit for bit.
    """

    name: str
    order: float

    def length(self, delta: Tensor) -> Tensor:
        """Length of each row, measured in float64."""
        length: Tensor = torch.linalg.vector_norm(delta.double().flatten(1), ord=self.order, dim=1)
        return length

    @abstractmethod
    def project(self, delta: Tensor, size: float) -> Tensor:
        """The point of the ball nearest to each row (in the Euclidean sense), in float64."""

    @abstractmethod
    def steepest(self, gradient: Tensor, blocked: Tensor | None = None, spread: float = 0.0) -> Tensor:
        """The direction of length at most 1 in which the gradient promises most; zero where it is zero.

        ``blocked`` marks coordinates that the range of the inputs keeps from moving, and ``spread`` is a share of the
        coordinates; both matter to l1 alone.
        """

    @abstractmethod
    def random(self, like: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """A uniformly random point of the ball for each row, in the precision of ``like``."""


class Linf(Ball):
    """Every coordinate may move by the size."""

    name, order = "linf", math.inf

    def project(self, delta: Tensor, size: float) -> Tensor:
        return delta.double().clamp(-size, size)

    def steepest(self, gradient: Tensor, blocked: Tensor | None = None, spread: float = 0.0) -> Tensor:
        return gradient.sign()

    def random(self, like: Tensor, size: float, generator: torch.Generator) -> Tensor:
        return (torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype) * 2 - 1) * size


class L2(Ball):
    """The Euclidean ball."""

    name, order = "l2", 2.0

    def project(self, delta: Tensor, size: float) -> Tensor:
        delta = delta.double()
        length = self.length(delta)
        too_long = length > size * SHRINK
        factor = torch.where(too_long, size * SHRINK / torch.where(too_long, length, 1.0), 1.0)
        return delta * per_row(factor, delta)

    def steepest(self, gradient: Tensor, blocked: Tensor | None = None, spread: float = 0.0) -> Tensor:
        scaled = _unit_largest(gradient)
        return scaled / _positive(torch.linalg.vector_norm(scaled.flatten(1), dim=1), scaled)

    def random(self, like: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """A normal direction, and a radius whose d-th power is uniform."""
        dimension = like[0].numel() if len(like) else 1
        normal = torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        share = torch.rand(len(like), generator=generator, device=like.device, dtype=like.dtype) ** (1 / dimension)
        return self.steepest(normal) * per_row(share * size, like)


class L1(Ball):
    """The cross-polytope: few coordinates may move a lot."""

    name, order = "l1", 1.0

    def project(self, delta: Tensor, size: float) -> Tensor:
        """Soft thresholding at the level at which the length is the size (Duchi et al., ICML 2008)."""
        delta = delta.double()
        magnitude = delta.abs().flatten(1)
        target = size * SHRINK
        descending = magnitude.sort(dim=1, descending=True).values
        count = torch.arange(1, magnitude.shape[1] + 1, device=delta.device, dtype=torch.float64)
        levels = (descending.cumsum(dim=1) - target) / count
        # The coordinates that stay are those above the level they would set together; there is at least the first.
        kept = (descending > levels).sum(dim=1, keepdim=True).clamp(min=1)
        level = levels.gather(1, kept - 1).clamp(min=0)
        shrunk = (magnitude - level).clamp(min=0)
        # Cancellation in the sums may leave a rest above the target.
        excess = (target / shrunk.sum(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)
        projected = (shrunk * excess).view_as(delta) * delta.sign()
        return torch.where(per_row(magnitude.sum(dim=1) > target, delta), projected, delta)

    def steepest(self, gradient: Tensor, blocked: Tensor | None = None, spread: float = 0.0) -> Tensor:
        """Equal steps along the largest coordinates that can still move: one, or a share ``spread`` of them all."""
        usable = gradient if blocked is None else gradient.masked_fill(blocked, 0.0)
        flat = usable.flatten(1)
        count = max(1, round(spread * flat.shape[1]))
        largest = flat.abs().topk(count, dim=1).indices
        direction = torch.zeros_like(flat).scatter(1, largest, flat.gather(1, largest).sign() / count)
        return direction.view_as(gradient)

    def random(self, like: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """Exponential shares with random signs; one share more than coordinates is left out, which makes it the solid ball."""
        dimension = like[0].numel() if len(like) else 1
        shares = torch.empty(len(like), dimension + 1, device=like.device, dtype=like.dtype).exponential_(generator=generator)
        signs = torch.rand(len(like), dimension, generator=generator, device=like.device, dtype=like.dtype).sub(0.5).sign()
        return (signs * shares[:, :dimension] / shares.sum(dim=1, keepdim=True) * size).view_as(like)


BALLS: dict[str, Ball] = {ball.name: ball for ball in (Linf(), L2(), L1())}
"""The norms there are. A closed set: certificates are promises about one of them."""


def ball_of(norm: str) -> Ball:
    if norm not in BALLS:
        raise ConfigError("unknown norm", where="norm", got=norm, wanted=", ".join(BALLS))
    return BALLS[norm]


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
