"""The rule that turns the sums of one certificate into an answer and a radius."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.verify_confidence import CLOPPER_PEARSON, COMPLEMENT, UNION, Counts, lower_bound, upper_bound
from twinproof.auditing.verify_reach import GAUSSIAN, TIGHT, reach_of, slack_of

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """How a radius is proven: everything that is a choice. The default is plain randomized smoothing."""

    law: str = GAUSSIAN
    bound: str = TIGHT
    confidence: str = CLOPPER_PEARSON
    runner_up: str = COMPLEMENT
    classes: int = 2
    resolution: int = 1


@dataclass(frozen=True)
class Answers:
    """For each input: bounds on its class and on every other, the radius (0 at least), and by how much programs may differ."""

    low: Array
    high: Array
    radius: Array
    slack: Array


@dataclass(frozen=True)
class Rule:
    """The numbers behind the radii of ``n`` draws; ``alpha`` is the share of the look after these draws.

    ``sigma`` and ``rounding`` are in units of the whitened layer, which moves by at most ``operator_norm`` (plus ``rounding``)
    when the input moves by one; or by ``slackless_norm`` and nothing for rounding, where there is such a number.
    """

    sigma: float
    tau: float
    n: int
    alpha: float
    way: Way = Way()
    operator_norm: float = 1.0
    rounding: float = 0.0
    slackless_norm: float | None = None

    def answers(self, counts: Counts) -> Answers:
        """What the sums prove; those that n draws cannot give are taken for the nearest that they can."""
        if counts.squares is not counts.total:
            return self._answers(counts)
        # Votes alone: a million inputs have far fewer different numbers of them.
        distinct, places = np.unique(counts.total, return_inverse=True)
        found = self._answers(Counts.of_votes(distinct))
        return Answers(*(column[places] for column in (found.low, found.high, found.radius, found.slack)))

    def _answers(self, counts: Counts) -> Answers:
        low, high = self.bounds(counts.within(self.n, self.way.resolution))
        reach = self.sigma * reach_of(self.way.law, self.way.bound, low, high)
        with np.errstate(all="ignore"):
            radius = np.maximum((reach - self.rounding) / self.operator_norm, 0.0)
            if self.slackless_norm is not None:
                radius = np.maximum(radius, reach / self.slackless_norm)
            slack = slack_of(self.way.law, self.way.bound) * reach / self.operator_norm
        return Answers(low, high, radius, np.where(np.isfinite(radius), slack, 0.0))

    def bounds(self, counts: Counts) -> tuple[Array, Array]:
        """Lower bound for the answer and upper bound for every other class, each with tau paid."""
        way = self.way
        level = self.alpha / way.classes if way.runner_up == UNION else self.alpha
        bound = lower_bound(way.confidence, counts.total, counts.squares, self.n, way.resolution, level)
        low = bound - self.tau
        if way.runner_up == COMPLEMENT:
            return low, 1 - low
        others = upper_bound(way.confidence, counts.other, counts.other_squares, self.n, way.resolution, level)
        return low, np.minimum(np.minimum(others, 1 - bound) + self.tau, 1.0)

    def unanimous(self) -> Counts:
        """What n draws give where all agree."""
        most = np.array([self.n * self.way.resolution], dtype=np.int64)
        squares = np.array([min(self.n * self.way.resolution**2, np.iinfo(np.int64).max)], dtype=np.int64)
        nobody = np.zeros(1, dtype=np.int64)
        return Counts(most, squares, nobody, nobody)
