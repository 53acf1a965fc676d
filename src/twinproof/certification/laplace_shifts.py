"""What independent Laplace noise on many coordinates keeps under a shift: exact where all move alike, Gaussian for any shift.

Let T(a) be the least probability with which an event keeps happening after a shift if it fails with probability a before it
(the trade-off of the two laws: type II against type I error). The answer stays where T(1 - low) + T(high) > 1: the top class
keeps at least T(1 - low), every other one gets at most 1 - T(high). By the lemma of Neyman and Pearson

    T(a) = max over c of g(c) - c a,        g(c) = integral of min(shifted density, c * density).

**Gaussian, for any shift.** One coordinate of scale 1 moved by v has a T never below that of a normal law moved by
sqrt(pi/2) v. Proof: both families are semigroups in the shift (an event that fails with a at 0 and with 1 - T_v(a) at v fails
with at most 1 - T_w(1 - T_v(a)) at v + w, and for densities on a line with monotone likelihood ratio the half-line attains
both), so that it is enough to compare slopes in v at v = 0. Those are the density at the quantile: min(a, 1 - a) for Laplace's
law, phi(Phi^-1(a)) for the normal. The latter is concave, 0 at a = 0 and 1/sqrt(2 pi) at a = 1/2, so sqrt(pi/2)
phi(Phi^-1(a)) >= min(a, 1 - a) on both halves, with equality at 1/2; the inequality of the slopes integrates. Independent
coordinates compose, and composition keeps the order of trade-offs (Dong, Roth and Su 2022, Theorem 3.2 and Proposition D.1);
normal laws moved by m_i compose to one that is moved by sqrt(sum m_i^2). So a shift of l2 length s costs at most what a
deviation of sqrt(pi/2) s costs under Gaussian noise, and ``TightGaussian``'s reach, over sqrt(pi/2), is a reach in l2.

**Exact, where the size of the change is measured in linf at the input.** T falls in the magnitude of each coordinate's shift,
so of all changes of size w the one that moves all d coordinates by w is the worst; a test of the likelihood ratio attains T.
Where ln c is linear in w, ln g is concave in w: a shifted density is log-concave in point and shift together, so is its minimum
with c times the density, and integrals over the point keep that (Prekopa 1973). So g is computed at multiples of a step, from
below, and between two of them its logarithm is at least the straight line.
At a multiple: with x drawn from one coordinate's law, the logarithm L of the likelihood ratio is -w for x < 0, 2x - w up to w
and w beyond. Its mass between two points of a grid is moved to both so that the mass and the mean of e^L stay (Doroshenko et
al. 2022): products of such spreads are spreads of the product, and g(c) = E min(e^L, c) is the mean of a concave function of
e^L, so that it can only fall. The d-fold convolution is a power of a Fourier transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from twinproof import checks
from twinproof.certification.bounds import Floats, RobustnessBound, TightGaussian
from twinproof.layers.noise import Law

# sqrt(2 / pi), rounded down.
_PER_DEVIATION = math.nextafter(math.sqrt(2 / math.pi), 0.0)
_DOWNWARDS = 1 - 2.0**-40


class GaussianShift(RobustnessBound):
    """Gaussian noise's reach over sqrt(pi/2), for shifts in l2: the proof is at the top of the file. Not tight."""

    name = "gaussian-shift"
    law = Law.LAPLACE
    theorem = "a Laplace coordinate moved by v is at worst sqrt(pi/2) v-Gaussian"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        return np.asarray(_PER_DEVIATION * _DOWNWARDS * TightGaussian().reach(low, high), dtype=np.float64)


# Multiples of 1 / (400 d^(1/4)) scales are computed: what a straight line loses between two of them is below 1e-6 of a scale.
_STEPS = 400
# Beyond it no size is asked for: (size in scales) * sqrt(d).
_FURTHEST = 12.0
# Pieces of the way of L from -size to size: 4096 / sqrt(d), rounded to a power of two. Places of a sum, of which there are d
# times as many, are levels ln c: every 2nd, 4th, ... of more than 16,384, every 8th at most. As they keep their places while
# the size grows, ln c is linear in it.
_PIECES, _LEVELS, _FEWEST = 4096, 8192, 8
# The convolution's window in sqrt(d) ways: outside of it lies less than 2 e^(-81 / 2) (Hoeffding). Half of that of the levels.
_WINDOW, _LEVEL_WINDOW = 9, 7.5
# For what lies outside, and for the errors of the transforms: each sum of probabilities is lowered by this.
_MARGIN = 2.0**-36
_TINY = float(np.finfo(np.float64).tiny)
_HALVINGS = 30
LARGEST_DIMENSION = 2**16


class EqualShifts(RobustnessBound):
    """The largest change in linf, in scales, of ``dimension`` coordinates that all have noise of their own: the proof is above.

    From below, by less than 1e-6; at most 12 / sqrt(dimension).
    """

    name = "equal-shifts"
    law = Law.LAPLACE
    theorem = "the product of one-dimensional Laplace trade-offs, by the lemma of Neyman and Pearson"

    def __init__(self, dimension: int) -> None:
        checks.whole(1, LARGEST_DIMENSION, dimension=dimension)
        self._table = _Table(dimension)
        self._last = math.floor(_FURTHEST / math.sqrt(dimension) / self._table.step)

    def _reach(self, low: Floats, high: Floats) -> Floats:
        return np.array([self._reach_of(np.array(pair)) for pair in zip(1 - low, high, strict=True)], dtype=np.float64)

    def _reach_of(self, errors: Floats) -> float:
        """Of errors (1 - low, high), by bisection: among the multiples, then on the straight line between two of them."""
        first, end = 0, self._last
        while end - first > 1:
            middle = (first + end) // 2
            first, end = (middle, end) if self._table.at(middle).best(errors)[1] > 1 else (first, middle)
        return _DOWNWARDS * self._table.step * (first + _beyond(self._table.at(first), self._table.at(first + 1), errors))


def _beyond(first: _Heights, after: _Heights, errors: Floats) -> float:
    """The share of the way from ``first`` to the next multiple at which the answer still stays; three ways of c are tried."""
    here, there = first.best(errors)[0], after.best(errors)[0]
    starts, ends = np.stack((here, here, there)), np.stack((here, there, there))
    height, level = np.log(first.heights[starts]), first.levels[starts]
    low, high = np.zeros(len(starts)), np.ones(len(starts))
    for _ in range(_HALVINGS):
        middle = ((low + high) / 2)[:, None]
        kept = np.exp(height + middle * (np.log(after.heights[ends]) - height))
        kept -= np.exp(level + middle * (after.levels[ends] - level)) * errors
        stays = kept.sum(axis=1) > 1
        low, high = np.where(stays, middle[:, 0], low), np.where(stays, high, middle[:, 0])
    return float(low.max())


@dataclass(frozen=True, eq=False)
class _Heights:
    """Levels ln c in growing order, and a lower bound on g(c) for each; positive."""

    levels: Floats
    heights: Floats

    @cached_property
    def _slopes(self) -> Floats:
        """Minus the slopes of g from level to level, in growing order: g is concave in c, but for what floats err."""
        with np.errstate(invalid="ignore"):
            slopes = np.diff(self.heights) / np.diff(np.exp(self.levels))
        return -np.maximum.accumulate(np.nan_to_num(slopes)[::-1])[::-1]

    def best(self, errors: Floats) -> tuple[NDArray[np.intp], float]:
        """For each error the level that shows most, and the sum of what is kept: T(1 - low) + T(high), from below."""
        best = np.searchsorted(self._slopes, -errors)
        return best, float((self.heights[best] - np.exp(self.levels[best]) * errors).sum())


@dataclass(frozen=True)
class _Table:
    """The heights at multiples of ``step``, made when they are asked for, and kept for all tables of this dimension."""

    dimension: int

    @property
    def step(self) -> float:
        return 1 / (_STEPS * math.pow(self.dimension, 0.25))

    @lru_cache(maxsize=512)  # noqa: B019 - tables are equal where their dimensions are, and few
    def at(self, multiple: int) -> _Heights:
        """Those of a shift of every coordinate by ``multiple`` steps."""
        size, root = multiple * self.step, math.sqrt(self.dimension)
        pieces = 2 ** round(math.log2(_PIECES / root))
        middle, half = self.dimension * pieces // 2, math.ceil(_LEVEL_WINDOW * root * pieces)
        every = min(_FEWEST, 2 ** max(0, (self.dimension * pieces // _LEVELS).bit_length() - 1))
        places = np.arange(max(0, middle - half) // every * every, min(2 * middle, middle + half) + 1, every)
        levels = size * (2 * places / pieces - self.dimension)
        if not multiple:
            return _Heights(levels, np.ones(len(levels)))
        start, tail = _tails(_spread(size, pieces), self.dimension)

        def at_least(place: NDArray[np.int64]) -> Floats:
            return np.maximum(tail[np.clip(place - start, 0, len(tail) - 1)] - _MARGIN, 0.0)

        # The shifted law is the mirror image: its logarithm is at most ln c where that of the other is at least -ln c.
        heights = at_least(self.dimension * pieces - places) + np.exp(levels) * at_least(places + 1)
        return _Heights(levels, np.maximum(heights, _TINY))


def _spread(size: float, pieces: int) -> Floats:
    """The probabilities of L at -size, ..., size in equal ``pieces``, each of which is moved to its two ends."""
    step = size / pieces
    mass = -np.exp(-step * np.arange(pieces)) * math.expm1(-step) / 2
    # The mean of e^L over a piece is e^step times that at its left end, and at its right end it is e^(2 step) times that.
    share = 1 / (1 + math.exp(step))
    made = np.zeros(pieces + 1)
    made[:-1] += (1 - share) * mass
    made[1:] += share * mass
    made[0] += 0.5
    made[-1] += math.exp(-size) / 2
    return made


def _tails(law: Floats, dimension: int) -> tuple[int, Floats]:
    """For the sum of draws of ``law``: the first place of a window, and how likely each place of it or a later one is."""
    from scipy.fft import irfft, next_fast_len, rfft

    most = dimension * (len(law) - 1) + 1
    length = next_fast_len(min(most, math.ceil(_WINDOW * math.sqrt(dimension) * len(law))), real=True)
    start = 0 if length >= most else round(dimension * float(law @ np.arange(len(law)))) - length // 2
    made = irfft(rfft(law, length) ** dimension, length)
    return start, np.append(np.cumsum(np.roll(made, -start)[::-1])[::-1], 0.0)
