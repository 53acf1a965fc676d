"""Bounds on a class's expected score from sums over draws, once more.

Clopper and Pearson's comes from the incomplete beta function; Hoeffding's and the empirical Bernstein bound (Maurer and Pontil
2009) from mean and variance, which are taken from the integers of the file without rounding.
"""

from __future__ import annotations

import math
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
