"""Three searches for an input near a certified one at which the smoothed classifier answers differently.

- ``ascend``: projected gradient ascent on -log of the mean probability of the certified class over noise (Salman et al. 2019),
  or descent on that of a rival, with fresh draws at every step.
- ``straight_on``: no climbing: random directions, those to the means of other classes, and the gradient's at the input.
- ``walk``: from a point where another class wins, found by a larger attack, straight back to the boundary, then along it:
  the direction turns towards the gradient of the winner's probability, and is kept where the boundary is nearer.

None of them is trusted: what they find is judged afterwards, with other noise.

A certificate speaks of storable inputs only (integers 0..levels), so only those can contradict it. Distances are measured on
the integers, in float64, and divided by the number of levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof import checks
from twinproof.attacks.objective import Objective, scores_of
from twinproof.attacks.search import Looker
from twinproof.attacks.threat import Ball, ball_of, per_row
from twinproof.auditing.certificate_judge import CROSSED, Judge, Screen

# As in projected gradient descent elsewhere: steps that together could cross the ball two and a half times.
_RELATIVE_STEP = 2.5
_HALVINGS = 6
# Of a scale: far finer than the steps at which another coordinate moves by one level.
_SCALE_HALVINGS = 40
# How much of the earlier gradients the walk keeps: one estimate alone is mostly noise in many dimensions.
_MEMORY = 0.7
# How much further than last seen the boundary is looked for.
_ROOM = 1.3
_MOST_CLASS_MEANS = 9
# Share of the coordinates that a step in l1 moves.
_SPREAD = 0.01
_GRADIENT_DIRECTIONS = 4
_MOST_RIVALS = 3


@dataclass(frozen=True)
class AttackBudget:
    """How hard certificates are attacked.

    ``steps`` and ``draws`` of each of ``restarts`` ascents, inside the radius and again beyond it: the first leads away from
    the certified class, the others towards its rivals. ``directions`` random ones; ``rounds`` of the walk along the boundary;
    ``screen`` draws for a cheap look at a candidate and ``votes`` to confirm one.
    """

    steps: int = 100
    draws: int = 32
    restarts: int = 3
    directions: int = 16
    rounds: int = 12
    screen: int = 200
    votes: int = 10_000

    def __post_init__(self) -> None:
        fewest = {"steps": 1, "draws": 1, "restarts": 1, "directions": 1, "rounds": 1, "screen": 20, "votes": 100}
        for name, least in fewest.items():
            checks.whole(least, **{name: getattr(self, name)})


@dataclass(frozen=True)
class Balls:
    """Around each row of ``stored`` (levels, float64) a ball of ``radii`` in input units, in ``norm``.

    Guarantees
        Every point of ``storable`` is an integer in 0..levels in each coordinate, and no further from its row than asked for:
        the length that decides is the one that ``measure`` gives for the very same point.
    """

    norm: str
    stored: Tensor
    radii: Tensor
    levels: int

    @property
    def ball(self) -> Ball:
        return ball_of(self.norm)

    @property
    def inputs(self) -> Tensor:
        """What the network sees: float32 in [0, 1]."""
        return (self.stored / self.levels).float()

    def copies(self, count: int) -> Balls:
        """Each row ``count`` times, copies side by side."""
        return replace(
            self, stored=self.stored.repeat_interleave(count, dim=0), radii=self.radii.repeat_interleave(count, dim=0)
        )

    def measure(self, points: Tensor) -> Tensor:
        """Distances of stored ``points`` to their rows, in input units."""
        return self.ball.length(points - self.stored) / self.levels

    def inside(self, points: Tensor, share: float) -> Tensor:
        """Any points in [0, 1] units, brought into the range and into ``share`` of the radius; for steps of a search."""
        size = per_row(self.radii * share, points)
        centre = self.stored / self.levels
        delta = points.double().nan_to_num().clamp(0, 1) - centre
        # Norms scale: a ball of any size is the unit ball of rows divided by that size.
        return (centre + self.ball.project(delta / size, 1.0) * size).clamp(0, 1).float()

    def random(self, share: float, generator: torch.Generator) -> Tensor:
        """A random point of each ball of ``share`` of the radius, within the range."""
        inputs = self.inputs
        away = self.ball.random(inputs, 1.0, generator) * per_row(self.radii * share, inputs).float()
        return self.inside(inputs + away, share)

    def unit(self, directions: Tensor) -> Tensor:
        """Directions at length 1 in the norm, in float64; a row of zeros, or with a NaN in it, becomes zero."""
        finite = per_row(directions.isfinite().flatten(1).all(dim=1), directions)
        known = torch.where(finite, directions, 0.0).double()
        length = self.ball.length(known)
        return known / per_row(torch.where(length > 0, length, 1.0), known)

    def storable(self, directions: Tensor, lengths: Tensor) -> Tensor:
        """The storable point along each direction that is as far away as it may be, and at most ``lengths``.

        The direction is scaled and rounded to levels, at the largest scale at which the rounded point still fits: cutting
        coordinates off towards the input instead would lose all that move by less than a level.
        """
        along = self.unit(directions) * self.levels
        dimension = along[0].numel() if len(along) else 1
        low, high = torch.zeros_like(lengths), 2 * lengths + dimension / self.levels
        for _ in range(_SCALE_HALVINGS):
            middle = (low + high) / 2
            fits = self.measure(self._rounded(along, middle)) <= lengths
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        return self._rounded(along, low)

    def _rounded(self, along: Tensor, scale: Tensor) -> Tensor:
        # Each coordinate moves away from the row as the scale grows, and clamping stops it: lengths grow with the scale.
        return (self.stored + (along * per_row(scale, along)).round()).clamp(0, self.levels)


@dataclass(frozen=True)
class Ray:
    """Directions from the inputs; ``lengths`` at which another class, of ``winners``, seems to win there.

    Lengths are infinite where none does; the winner is then the likeliest one.
    """

    directions: Tensor
    lengths: Tensor
    winners: Tensor

    def where(self, chosen: Tensor, other: Ray) -> Ray:
        return Ray(
            torch.where(per_row(chosen, self.directions), self.directions, other.directions),
            torch.where(chosen, self.lengths, other.lengths),
            torch.where(chosen, self.winners, other.winners),
        )


def likely_rivals(objective: Objective, inputs: Tensor, certified: Tensor, generator: torch.Generator) -> Tensor:
    """(rows, rivals): the classes that the network finds likeliest under noise beside the certified one, first ones first.

    A network with a noise layer draws its own, and ``sigma`` at the input is then zero.
    """
    total, draws = None, objective.looking
    with torch.no_grad():
        for _ in range(draws.count):
            noise = torch.randn(inputs.shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
            likely = scores_of(objective.model, inputs + draws.sigma * noise).softmax(dim=1).nan_to_num()
            total = likely if total is None else total + likely
    if total is None:
        raise ValueError("an objective looks at least once")
    return total.scatter(1, certified[:, None], -1.0).topk(min(_MOST_RIVALS, total.shape[1] - 1), dim=1).indices


class CertificateSearch:
    """The searches on one batch. To be used with the network in ``untouched``, on the device of the balls."""

    def __init__(
        self,
        balls: Balls,
        certified: Tensor,
        rivals: Tensor,
        looker: Looker,
        judge: Judge,
        budget: AttackBudget,
        generator: torch.Generator,
    ) -> None:
        self._balls, self._certified, self._rivals, self._looker = balls, certified, rivals, looker
        self._judge, self._budget, self._generator = judge, budget, generator
        self._labels: list[int] = certified.tolist()

    def ascents(self, share: float, count: int) -> list[Tensor]:
        """``count`` ascents: away from the certified class first, then towards one rival after the other."""
        rivals = self._rivals.shape[1]
        aims = [None, *(self._rivals[:, number % rivals] for number in range(count - 1))]
        return [self.ascend(share, aim) for aim in aims]

    def ascend(self, share: float, towards: Tensor | None = None) -> Tensor:
        """Where gradient steps within ``share`` of the radius end, as directions from the inputs."""
        balls = self._balls
        points = balls.random(share, self._generator)
        length = per_row(balls.radii * share * _RELATIVE_STEP / self._budget.steps, points).float()
        for _ in range(self._budget.steps):
            points = balls.inside(points + length * self._uphill(points, towards), share)
        return points.double() - balls.stored / balls.levels

    def straight_on(self, means: Tensor) -> list[Tensor]:
        """Directions that need no ascent; ``means`` holds the mean input of each class, in [0, 1]."""
        inputs, ball = self._balls.inputs, self._balls.ball
        shape = inputs.shape
        # Random, but of the norm's own kind (signs in linf, few coordinates in l1), which gets furthest within its length.
        found = [
            ball.steepest(
                torch.randn(shape, generator=self._generator, device=inputs.device, dtype=inputs.dtype), None, _SPREAD
            )
            for _ in range(self._budget.directions)
        ]
        found += [self._uphill(inputs) for _ in range(_GRADIENT_DIRECTIONS)]
        found.append(sum(found[-_GRADIENT_DIRECTIONS:], torch.zeros_like(inputs)))
        away = torch.cdist(inputs.flatten(1).double(), means.flatten(1).double())
        away.scatter_(1, self._certified[:, None], torch.inf)
        nearest = away.topk(min(_MOST_CLASS_MEANS, len(means) - 1), dim=1, largest=False).indices
        return found + [means[nearest[:, column]].to(inputs) - inputs for column in range(nearest.shape[1])]

    def strongest(self, directions: Sequence[Tensor], share: float) -> tuple[Tensor, NDArray[np.float64]]:
        """Of several directions the one whose storable point at ``share`` of the radius has the lowest margin, with it."""
        count, rows = len(directions), len(self._certified)
        stacked = torch.stack([direction.double() for direction in directions], dim=1).flatten(0, 1)
        balls = self._balls.copies(count)
        points = balls.storable(stacked, balls.radii * share)
        margins = self._judge.screen(points, np.repeat(self._labels, count).tolist()).margins.reshape(rows, count)
        best = margins.argmin(axis=1)
        chosen = torch.from_numpy(np.arange(rows) * count + best).to(stacked.device)
        return stacked[chosen], margins.min(axis=1)

    def screen(self, points: Tensor) -> Screen:
        """A cheap look at stored points, one for each row."""
        return self._judge.screen(points, self._labels)

    def walk(self, starts: Sequence[Tensor], outward: float) -> Ray:
        """The shortest way found to the boundary, up to ``outward`` radii, beginning with the best of ``starts``."""
        balls, limit = self._balls, self._balls.radii * outward
        ray = self._crossing(starts[0], limit)
        for start in starts[1:]:
            other = self._crossing(start, limit)
            ray = other.where(other.lengths < ray.lengths, ray)
        gathered = torch.zeros_like(ray.directions)
        for number in range(self._budget.rounds):
            boundary = balls.stored / balls.levels + ray.directions * per_row(ray.lengths.minimum(limit), ray.directions)
            gathered = _MEMORY * gathered + self._uphill(boundary.clamp(0, 1).float(), ray.winners).double()
            # First turns are large, later ones small: near the closest point only little is to be gained.
            turned = balls.unit(ray.directions + 2 / (1 + number) * balls.unit(gathered))
            # Both are measured anew: a length that chance made short once would otherwise never be beaten.
            ahead = (ray.lengths * _ROOM).minimum(limit)
            kept, other = self._crossing(ray.directions, ahead), self._crossing(turned, ahead)
            ray = other.where((other.lengths < kept.lengths) | kept.lengths.isinf(), kept)
            missed = ray.lengths.isinf() & (ahead < limit)
            ray = replace(ray, lengths=torch.where(missed, ahead, ray.lengths))
        return ray

    def _uphill(self, points: Tensor, towards: Tensor | None = None) -> Tensor:
        """The steepest direction away from the certified class or ``towards`` others; zero where a gradient is no number."""
        gradient = self._looker.step(points, self._certified if towards is None else towards).gradient
        if gradient is None:
            raise ValueError("a step needs a gradient")
        finite = per_row(gradient.isfinite().flatten(1).all(dim=1), gradient)
        wanted = torch.where(finite, gradient if towards is None else -gradient, 0.0)
        blocked = ((wanted > 0) & (points >= 1)) | ((wanted < 0) & (points <= 0))
        return self._balls.ball.steepest(wanted, blocked, _SPREAD)

    def _crossing(self, directions: Tensor, most: Tensor) -> Ray:
        """At which length along each direction another class begins to win, by halving; infinite if none does by ``most``."""
        crossed, leaders = self._crossed(directions, most)
        never, winners = ~crossed, torch.where(crossed, leaders, self._rivals[:, 0])
        low, high = torch.zeros_like(most), most
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            crossed, leaders = self._crossed(directions, middle)
            low, high = torch.where(crossed, low, middle), torch.where(crossed, middle, high)
            winners = torch.where(crossed, leaders, winners)
        return Ray(self._balls.unit(directions), torch.where(never, torch.inf, high), winners)

    def _crossed(self, directions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Whether another class seems to have the majority there, and who leads."""
        seen, device = self.screen(self._balls.storable(directions, lengths)), lengths.device
        return torch.from_numpy(seen.margins < CROSSED).to(device), torch.from_numpy(seen.leaders).to(device)
