"""From sums over draws to radii: confidence bounds, how far the noisy layer may move, and the rule that joins them.

Everything is written again from the theorems. Where a bound is the best of many (epsilon, delta), the certifier searches along
delta; here the same frontier is walked along epsilon: for a given epsilon the largest delta that the condition allows has a
closed form, and less noise suffices for a larger delta, so that the best pair lies there. ``reach_of`` never exceeds what the
bound's theorem gives beyond float64 rounding, and falls short of the best pair by less than ``SEARCH_SLACK``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

CLOPPER_PEARSON, HOEFFDING, BERNSTEIN = "clopper-pearson", "hoeffding", "empirical-bernstein"
CONFIDENCES = (CLOPPER_PEARSON, HOEFFDING, BERNSTEIN)
COMPLEMENT, UNION = "complement", "union"
RUNNERS_UP = (COMPLEMENT, UNION)


@dataclass(frozen=True)
class Counts:
    """Sums over draws for each input: of the answer's score and of its square, and the same for the best other class."""

    total: Whole
    squares: Whole
    other: Whole
    other_squares: Whole

    @classmethod
    def of_votes(cls, votes: Whole) -> Counts:
        """Votes alone: each is its own square, and the others are bounded by the complement."""
        nobody = np.zeros_like(votes)
        return cls(votes, votes, nobody, nobody)

    def within(self, draws: int, resolution: int) -> Counts:
        """The same with sums that no draws can give brought into range, so that a bound can be computed at all."""
        most, squares = draws * resolution, min(draws * resolution**2, np.iinfo(np.int64).max)
        return replace(
            self,
            total=np.minimum(self.total, most),
            squares=np.minimum(self.squares, squares),
            other=np.minimum(self.other, most),
            other_squares=np.minimum(self.other_squares, squares),
        )


def lower_bound(confidence: str, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Array:
    """What the expectation is at least, except with probability ``level``."""
    if confidence == CLOPPER_PEARSON:
        return _fewest(total, draws, level)
    return np.clip(_mean(total, draws, resolution) - _width(confidence, total, squares, draws, resolution, level), 0, 1)


def upper_bound(confidence: str, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Array:
    """What the expectation is at most, except with probability ``level``."""
    if confidence == CLOPPER_PEARSON:
        return _most(total, draws, level)
    return np.clip(_mean(total, draws, resolution) + _width(confidence, total, squares, draws, resolution, level), 0, 1)


def _fewest(votes: Whole, draws: int, level: float) -> Array:
    """The probability at which so many votes or more are just as unlikely as ``level``."""
    from scipy.special import betaincinv

    distinct, places = np.unique(votes, return_inverse=True)
    successes = np.maximum(distinct, 1).astype(np.float64)
    bound = np.where(distinct > 0, betaincinv(successes, draws - successes + 1, level), 0.0)
    return np.asarray(bound[places], dtype=np.float64)


def _most(votes: Whole, draws: int, level: float) -> Array:
    """The probability at which so few votes or fewer are just as unlikely as ``level``."""
    from scipy.special import betainccinv

    distinct, places = np.unique(votes, return_inverse=True)
    failures = np.maximum(draws - distinct, 1).astype(np.float64)
    bound = np.where(distinct < draws, betainccinv(distinct + 1.0, failures, level), 1.0)
    return np.asarray(bound[places], dtype=np.float64)


def _mean(total: Whole, draws: int, resolution: int) -> Array:
    return total / (draws * resolution)


def _width(confidence: str, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Array:
    """Half of the interval's width."""
    if confidence == HOEFFDING:
        return np.full(len(total), math.sqrt(-math.log(level) / (2 * draws)))
    if draws < 2:
        return np.full(len(total), math.inf)
    cost = math.log(2) - math.log(level)
    return np.sqrt(2 * cost / draws * variance(total, squares, draws, resolution)) + 7 * cost / (3 * (draws - 1))


def variance(total: Whole, squares: Whole, draws: int, resolution: int) -> Array:
    """The unbiased sample variance of the scores; 0 where the sums are those of no scores."""
    unit = draws * (draws - 1) * resolution**2
    pairs = zip(total.tolist(), squares.tolist(), strict=True)
    return np.array([max(0, draws * square - one * one) / unit for one, square in pairs], dtype=np.float64)


def clopper_pearson(correct: int, total: int, confidence: float) -> tuple[float, float]:
    """Both ends of the two-sided interval for a probability, unrounded."""
    from scipy.special import betaincinv

    tail = (1.0 - confidence) / 2
    low = float(betaincinv(correct, total - correct + 1, tail)) if correct else 0.0
    high = float(betaincinv(correct + 1, total - correct, 1 - tail)) if correct < total else 1.0
    return low, high


GAUSSIAN, LAPLACE = "gaussian", "laplace"
TIGHT, HGM, HGM_COMPLEMENT, PIXELDP, PUBLISHED = "tight", "hgm", "hgm-complement", "pixeldp", "published"
COMPOSITION, PURE_EPSILON, BEST = "composition", "pure-epsilon", "best"
# Two float64 computations of one closed form; and of one maximum that is searched for.
CLOSED_SLACK, SEARCH_SLACK = 1e-9, 1e-6
# In scales: two programs that compute the size of equal shifts as the format describes it.
SHIFT_SLACK = 1e-9
MOST_COORDINATES = 2**16
"""Of Laplace noise on the input, for which the size of equal shifts is asked for."""
PUBLISHED_DELTA = 1e-5
_GRID, _ZOOM, _ROUNDS = 256, 16, 6
# Pairs searched together: what a table of them may take.
_PAIRS = 4096


def normal_quantile(p: Array) -> Array:
    """Phi^-1, through the inverse of the complementary error function."""
    from scipy.special import erfcinv

    return np.asarray(-math.sqrt(2) * erfcinv(2 * p))


def _gaussian_tight(low: Array, high: Array) -> Array:
    """Neyman and Pearson's. Where nothing but the complement bounds the others, both halves are the same number."""
    upper = normal_quantile(low)
    return np.where(high >= 1 - low, upper, (upper - normal_quantile(high)) / 2)


def _laplace_dp(low: Array, high: Array) -> Array:
    """Pure differential privacy applied to both classes."""
    return (np.log(low) - np.log(high)) / 2


def _pure_epsilon(low: Array, high: Array) -> Array:
    """The better of that and of privacy applied to the complement; formats 1 to 3 call it tight, which it is in l1."""
    return np.maximum(_laplace_dp(low, high), _log_complement(low, high))


def _log_complement(low: Array, high: Array) -> Array:
    """-ln(1 - low + high); each form where it does not cancel."""
    return np.where(low - high < 0.5, -np.log1p(high - low), -np.log((1 - low) + high))


def classic_reach(epsilon: Array, delta: Array) -> Array:
    """One over the classic Gaussian mechanism's deviation for sensitivity 1, proven for epsilon up to 1."""
    return np.asarray(epsilon / np.sqrt(2 * (math.log(1.25) - np.log(delta))))


def extended_reach(epsilon: Array, delta: Array) -> Array:
    """One over the extended mechanism's deviation for sensitivity 1, at any epsilon; for delta up to sqrt(2 / pi)."""
    s = 0.5 * math.log(2 / math.pi) - np.log(delta)
    return np.asarray(math.sqrt(2) * epsilon / (np.sqrt(s) + np.sqrt(s + epsilon)))


def _both_classes(low: Array, high: Array, epsilon: Array) -> Array:
    """The largest delta with low >= e^(2 epsilon) high + (1 + e^epsilon) delta; without cancelling where epsilon is small."""
    return np.asarray(((low - high) - high * np.expm1(2 * epsilon)) / (2 + np.expm1(epsilon)))


def _complement(low: Array, high: Array, epsilon: Array) -> Array:
    """The largest delta with 1 - 2 delta >= e^epsilon (1 - low + high): privacy applied to all but the answer."""
    return np.asarray(((low - high) - (1 - low + high) * np.expm1(epsilon)) / 2)


Frontier = Callable[[Array, Array, Array], Array]
Reach = Callable[[Array, Array], Array]


def _best_pair(low: Array, high: Array, end: Array, frontier: Frontier, reach: Reach) -> Array:
    """The largest ``reach`` along the ``frontier`` for epsilons up to ``end``, for pairs with low > high."""
    found = np.zeros_like(low)
    for first in range(0, len(low), _PAIRS):
        some = slice(first, first + _PAIRS)
        found[some] = _searched(low[some, None], high[some, None], end[some, None], frontier, reach)
    return found


def _searched(low: Array, high: Array, end: Array, frontier: Frontier, reach: Reach) -> Array:
    def at(shares: Array) -> Array:
        epsilon = end * shares
        delta = frontier(low, high, epsilon)
        return np.where(delta > 0, reach(epsilon, np.maximum(delta, np.finfo(np.float64).tiny)), 0.0)

    shares = np.broadcast_to(np.linspace(0, 1, _GRID + 1), (len(low), _GRID + 1))
    best = np.zeros(len(low))
    for _ in range(_ROUNDS):
        values = at(shares)
        place = values.argmax(axis=1)
        rows, last = np.arange(len(low)), shares.shape[1] - 1
        best = np.maximum(best, values[rows, place])
        left, right = shares[rows, np.maximum(place - 1, 0)], shares[rows, np.minimum(place + 1, last)]
        shares = left[:, None] + (right - left)[:, None] * np.linspace(0, 1, _ZOOM + 1)
    return best


def _gaussian_pixeldp(low: Array, high: Array) -> Array:
    return _best_pair(low, high, np.minimum(_laplace_dp(low, high), 1.0), _both_classes, classic_reach)


def _gaussian_hgm(low: Array, high: Array) -> Array:
    return _best_pair(low, high, _laplace_dp(low, high), _both_classes, extended_reach)


def _gaussian_hgm_complement(low: Array, high: Array) -> Array:
    others = _best_pair(low, high, _log_complement(low, high), _complement, extended_reach)
    return np.maximum(_gaussian_hgm(low, high), others)


def _gaussian_published(low: Array, high: Array) -> Array:
    """The extended mechanism's at one delta, times epsilon once too often, as it was printed. Not a bound."""
    delta = np.full_like(low, PUBLISHED_DELTA)
    room = np.maximum(low - delta, 0)
    factor = 2 * room / (delta + np.sqrt(delta**2 + 4 * high * room))
    epsilon = np.log(np.maximum(factor, 1.0))
    return epsilon * extended_reach(epsilon, delta)


_REACHES: dict[tuple[str, str], Callable[[Array, Array], Array]] = {
    (GAUSSIAN, TIGHT): _gaussian_tight,
    (GAUSSIAN, HGM): _gaussian_hgm,
    (GAUSSIAN, HGM_COMPLEMENT): _gaussian_hgm_complement,
    (GAUSSIAN, PIXELDP): _gaussian_pixeldp,
    (GAUSSIAN, PUBLISHED): _gaussian_published,
    (LAPLACE, BEST): _pure_epsilon,  # in l1; the longest radius counts
    (LAPLACE, TIGHT): _pure_epsilon,
    (LAPLACE, PURE_EPSILON): _pure_epsilon,
    (LAPLACE, PIXELDP): _laplace_dp,
    (LAPLACE, COMPOSITION): _laplace_dp,
    (LAPLACE, PUBLISHED): _laplace_dp,  # false by the noise that it is multiplied with, not by this
}
BOUNDS = {law: tuple(bound for one, bound in _REACHES if one == law) for law in (GAUSSIAN, LAPLACE)}


def slack_of(law: str, bound: str) -> float:
    """How far two correct programs may differ, relatively."""
    return SEARCH_SLACK if law == GAUSSIAN and bound in (HGM, HGM_COMPLEMENT, PIXELDP) else CLOSED_SLACK


def reach_of(law: str, bound: str, low: Array, high: Array) -> Array:
    """The reach for bounds ``low`` on the answer's probability and ``high`` on any other's; 0 where low <= high."""
    return _of_answers(_REACHES[law, bound], low, high)


def _of_answers(reach: Reach, low: Array, high: Array) -> Array:
    pairs, places = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
    answers = pairs[:, 0] > pairs[:, 1]
    found = np.zeros(len(pairs))
    with np.errstate(all="ignore"):  # what has no finite value is reported by whoever asks
        found[answers] = reach(pairs[answers, 0], pairs[answers, 1])
    return found[places.reshape(-1)]


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
class Moved:
    """How far what gets the noise moves for one unit of the input, besides rounding; or without, where there is such a norm."""

    norm: float
    rounding: float = 0.0
    without_rounding: float | None = None

    def radius(self, reach: Array) -> Array:
        """The size of the change that moves it by ``reach``."""
        with np.errstate(all="ignore"):
            radius = np.maximum((reach - self.rounding) / self.norm, 0.0)
            return radius if self.without_rounding is None else np.maximum(radius, reach / self.without_rounding)


@dataclass(frozen=True)
class Rule:
    """The numbers behind the radii of ``n`` draws; ``alpha`` is the share of the look after these draws.

    ``sigma`` and ``rounding`` are in units of the whitened layer, which moves by at most ``operator_norm`` (plus ``rounding``)
    when the input moves by one; or by ``slackless_norm`` and nothing for rounding, where there is such a number. Laplace noise
    has further reaches, which count where they are longer: in l2, where it is known how far that ``in_l2`` moves, and in linf
    where so many ``coordinates`` of the input have noise of their own.
    """

    sigma: float
    tau: float
    n: int
    alpha: float
    way: Way = Way()
    operator_norm: float = 1.0
    rounding: float = 0.0
    slackless_norm: float | None = None
    in_l2: Moved | None = None
    coordinates: int = 0

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
        radius = Moved(self.operator_norm, self.rounding, self.slackless_norm).radius(reach)
        with np.errstate(all="ignore"):
            slack = slack_of(self.way.law, self.way.bound) * reach / self.operator_norm
        if self.in_l2 is not None:
            from twinproof_verify.laplace import equal_shifts_reach, gaussian_reach

            radius = np.maximum(radius, self.in_l2.radius(self.sigma * _of_answers(gaussian_reach, low, high)))
            slack = np.maximum(slack, CLOSED_SLACK * radius)
            if self.coordinates:
                equal = _of_answers(lambda one, other: equal_shifts_reach(self.coordinates, one, other), low, high)
                radius, slack = np.maximum(radius, self.sigma * equal), slack + self.sigma * SHIFT_SLACK
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
