"""Classifiers on a line whose expected scores, and the shift that changes their answer, are known; formulas in 40 digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.stats import binom, laplace, norm

from twinproof.certification.confidence import Evidence
from twinproof.layers.noise import Law

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
ALPHA, INPUTS = 0.05, 10_000
# More failures than this among 10,000 certificates have a probability below 1e-6 where each fails with at most ALPHA.
MOST_FAILURES = int(binom.isf(1e-6, INPUTS, ALPHA))


@dataclass(frozen=True)
class LineModel:
    """Scores that are constant between the ``cuts`` of a line; row j of ``scores``, in 1/resolution, belongs to interval j.

    For noise in many dimensions this is a classifier that looks along one axis: shifts along it are the shortest that matter,
    in l2 and in l1.
    """

    law: Law
    cuts: tuple[float, ...]
    scores: tuple[tuple[int, ...], ...]
    resolution: int = 1

    def intervals(self, shift: float) -> Floats:
        """How likely the noisy point lies in each interval, after a shift."""
        law = norm if self.law is Law.GAUSSIAN else laplace
        edges = np.concatenate(([0.0], law.cdf(np.array(self.cuts) - shift), [1.0]))
        return np.diff(edges)

    def expected(self, shift: float = 0.0) -> Floats:
        """Each class's expected score."""
        return np.asarray(self.intervals(shift) @ np.array(self.scores) / self.resolution, dtype=np.float64)

    @cached_property
    def top(self) -> int:
        """The answer without a shift."""
        return int(self.expected().argmax())

    def lead(self, shift: float) -> float:
        """By how much the top class leads after a shift; negative where the answer is another."""
        expected = self.expected(shift)
        return float(expected[self.top] - np.delete(expected, self.top).max())

    @cached_property
    def truth(self) -> float:
        """The length of the shortest shift that changes the answer."""
        found = []
        for side in (-1.0, 1.0):
            lengths = np.linspace(0, 12, 1201)
            lost = np.flatnonzero([self.lead(side * length) < 0 for length in lengths])
            if len(lost):
                before, after = lengths[lost[0] - 1], lengths[lost[0]]
                found.append(float(brentq(lambda length, side=side: self.lead(side * length), before, after, xtol=1e-13)))
        return min(found)

    def sums(self, draws: int, inputs: int = INPUTS, seed: int = 0) -> tuple[Whole, Whole]:
        """(inputs, classes) sums of scores and of their squares, over independent draws."""
        counts = np.random.default_rng(seed).multinomial(draws, self.intervals(0.0), size=inputs).astype(np.int64)
        scores = np.array(self.scores, dtype=np.int64)
        return counts @ scores, counts @ scores**2

    def evidence(self, draws: int) -> Evidence:
        """The top class's sums, and those of the other class with the most of them."""
        sums, squares = self.sums(draws)
        rest = np.where(np.arange(sums.shape[1]) == self.top, -1, sums)
        rows, other = np.arange(len(sums)), rest.argmax(axis=1)
        return Evidence(
            draws, self.resolution, sums[:, self.top], squares[:, self.top], sums[rows, other], squares[rows, other]
        )


def halfspace(law: Law, distance: float) -> LineModel:
    """Two classes, the boundary at ``distance``: the extremal classifier of the tight bounds."""
    return LineModel(law, (-distance,), ((0, 1), (1, 0)))


def three_intervals(law: Law) -> LineModel:
    """The top class above, a rival below, a weak class between: the complement of the top class is not the rival."""
    return LineModel(law, (-1.5, -0.2), ((0, 1, 0), (0, 0, 1), (1, 0, 0)))


def soft_steps(law: Law) -> LineModel:
    """Scores in quarters, that add up to 1."""
    return LineModel(law, (-2.0, -0.8, 0.6), ((0, 4), (1, 3), (3, 1), (4, 0)), resolution=4)


def few(failed: int) -> bool:
    """Whether so many false ones of 10,000 certificates can be chance at ALPHA."""
    return failed <= MOST_FAILURES


def exact_tight(low: float, high: float) -> float:
    """(Phi^-1(low) - Phi^-1(high)) / 2 in 40 digits."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(40):
        quantiles = [mp.sqrt(2) * mp.erfinv(2 * mp.mpf(value) - 1) for value in (low, high)]
        return float((quantiles[0] - quantiles[1]) / 2)


def exact_output_privacy(low: float, high: float, delta: float, *, classic: bool) -> float:
    """1 / g(epsilon*(delta), delta) in 40 digits, g of the classic mechanism (epsilon at most 1) or of Theorem 2."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(40):
        lb, ub, d = mp.mpf(low), mp.mpf(high), mp.mpf(delta)
        if lb - ub <= 2 * d:
            return 0.0
        epsilon = mp.log((-d + mp.sqrt(d * d + 4 * ub * (lb - d))) / (2 * ub))
        if classic:
            return float(min(epsilon, mp.mpf(1)) / mp.sqrt(2 * mp.log(mp.mpf(5) / 4 / d)))
        s = mp.log(mp.sqrt(2 / mp.pi) / d)
        return float(mp.sqrt(2) * epsilon / (mp.sqrt(s) + mp.sqrt(s + epsilon)))


@dataclass(frozen=True)
class EqualLaplaceShifts:
    """T(1 - low) + T(high) - 1 for a shift of all coordinates, from above: pieces of a likelihood ratio brought to their means.

    The trade-off of two laws is a mean of a concave function of the likelihood ratio (Jensen): what the certifier spreads to
    the ends of a piece is drawn together here. The mean of a piece lies at the middle of its logarithms.
    """

    dimension: int

    def lead(self, size: float, low: float, high: float) -> float:
        """Negative only at sizes that are above the exact reach, and, but for 1e-7 of them, at all of those."""
        pieces = max(32, 2 ** round(math.log2(8192 / math.sqrt(self.dimension))))
        places, least = self._sum(size, pieces)
        levels = size * (places / pieces - self.dimension)
        tail = np.append(np.cumsum(least[::-1])[::-1], 0.0)
        # P(L >= -level), by the place of the mirror image, where L has places from 0 to 2 * dimension * pieces.
        mirrored = np.clip(2 * self.dimension * pieces - places - places[0], 0, len(places))
        heights = tail[mirrored] + np.exp(levels) * tail[1:]
        return sum(float((heights - np.exp(levels) * error).max()) for error in (1 - low, high)) - 1

    def _sum(self, size: float, pieces: int) -> tuple[NDArray[np.int64], Floats]:
        """The law of the sum of all coordinates' L on places of half a piece, around its mean."""
        edges = np.linspace(0, size, pieces + 1)
        one = np.zeros(2 * pieces + 1)
        one[1::2] = (np.exp(-edges[:-1]) - np.exp(-edges[1:])) / 2
        one[0] += 0.5
        one[-1] += math.exp(-size) / 2
        most = self.dimension * 2 * pieces
        length = next_fast_len(min(most + 1, math.ceil(16 * math.sqrt(self.dimension) * pieces)), real=True)
        found = irfft(rfft(one, length) ** self.dimension, length)
        first = 0 if length > most else round(self.dimension * float(one @ np.arange(len(one)))) - length // 2
        return np.arange(first, first + len(found)), np.roll(found, -first)
