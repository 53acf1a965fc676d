"""How far the whitened layer may move, in deviations of its noise, before the answer can change: every bound written again.

Where a bound is the best of many (epsilon, delta), the certifier searches along delta. Here the same frontier is walked along
epsilon: for a given epsilon there is a largest delta that the condition allows, in closed form, and less noise suffices for a
larger delta, so that the best pair lies there.

Guarantees
    ``reach_of`` never exceeds what the bound's own theorem gives beyond float64 rounding, as every pair that is tried keeps the
    condition; it falls short of the best pair by less than ``SEARCH_SLACK`` (the search ends in steps of 1e-7 of the range,
    around a maximum where the slope is 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GAUSSIAN, LAPLACE = "gaussian", "laplace"
TIGHT, HGM, HGM_COMPLEMENT, PIXELDP, PUBLISHED = "tight", "hgm", "hgm-complement", "pixeldp", "published"
COMPOSITION = "composition"
# Two float64 computations of one closed form; and of one maximum that is searched for.
CLOSED_SLACK, SEARCH_SLACK = 1e-9, 1e-6
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


def _laplace_tight(low: Array, high: Array) -> Array:
    """The better of that and of privacy applied to the complement."""
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
    (LAPLACE, TIGHT): _laplace_tight,
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
    pairs, places = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
    answers = pairs[:, 0] > pairs[:, 1]
    found = np.zeros(len(pairs))
    with np.errstate(all="ignore"):  # what has no finite value is reported by whoever asks
        found[answers] = _REACHES[law, bound](pairs[answers, 0], pairs[answers, 1])
    return found[places.reshape(-1)]
