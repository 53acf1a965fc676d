"""The three confidence bounds: exact for votes, and two for scores."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from twinproof.certification.bounds.bound import Floats
from twinproof.certification.bounds.confidence import Confidence
from twinproof.certification.bounds.evidence import Whole, spread_of
from twinproof.certification.clopper_pearson import clopper_pearson_lower
from twinproof.errors import ConfigError


class ClopperPearson(Confidence):
    """The exact bound on a probability, from votes (Clopper and Pearson 1934): the best there is for them.

    Guarantees
        Those of ``clopper_pearson_lower``; the upper bound is one minus the lower bound on the votes for everybody else.
    """

    name = "clopper-pearson"
    theorem = "Clopper and Pearson 1934 (exact binomial tail)"
    votes_only = True

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The ``level`` quantile of Beta(votes, draws - votes + 1)."""
        # Inputs share their numbers of votes, and a quantile of the beta distribution takes its time.
        votes, which = np.unique(total, return_inverse=True)
        return clopper_pearson_lower(votes, draws, level)[which.reshape(total.shape)]

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """One minus the lower bound on the complement."""
        return np.asarray(1 - self.lower(draws - total, squares, draws, resolution, level), dtype=np.float64)


class Hoeffding(Confidence):
    """mean -+ sqrt(ln(1 / level) / (2 n)) (Hoeffding 1963): the draws' number alone decides how sure it is."""

    name = "hoeffding"
    theorem = "Hoeffding 1963, Theorem 2"

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean less the margin."""
        return np.maximum(_mean(total, draws, resolution) - _hoeffding_margin(draws, level), 0.0)

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean plus the margin."""
        return np.minimum(_mean(total, draws, resolution) + _hoeffding_margin(draws, level), 1.0)


class EmpiricalBernstein(Confidence):
    """mean -+ (sqrt(2 V ln(2 / level) / n) + 7 ln(2 / level) / (3 (n - 1))), V the unbiased sample variance.

    Better than Hoeffding where the scores vary little. The 2 in the logarithm pays for the variance being an estimate.
    """

    name = "empirical-bernstein"
    theorem = "Maurer and Pontil 2009, Theorem 4 (empirical Bernstein)"

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean less the margin; 0 from a single draw, which shows no variance."""
        return np.maximum(_mean(total, draws, resolution) - _bernstein_margin(total, squares, draws, resolution, level), 0.0)

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean plus the margin; 1 from a single draw."""
        return np.minimum(_mean(total, draws, resolution) + _bernstein_margin(total, squares, draws, resolution, level), 1.0)


_ALL: tuple[Confidence, ...] = (ClopperPearson(), Hoeffding(), EmpiricalBernstein())
_BY_NAME: Mapping[str, Confidence] = {confidence.name: confidence for confidence in _ALL}
CONFIDENCE_NAMES: tuple[str, ...] = tuple(_BY_NAME)


def find_confidence(name: str) -> Confidence:
    """The confidence bound of that name; the error lists what there is."""
    if name not in _BY_NAME:
        raise ConfigError(
            "there is no such confidence bound", where="confidence", got=name, wanted=f"one of: {', '.join(CONFIDENCE_NAMES)}"
        )
    return _BY_NAME[name]


def _mean(total: Whole, draws: int, resolution: int) -> Floats:
    return np.asarray(total / (draws * resolution), dtype=np.float64)


def _hoeffding_margin(draws: int, level: float) -> float:
    return math.sqrt(-math.log(level) / (2 * draws))


def _bernstein_margin(total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> NDArray[np.float64]:
    if draws < 2:
        return np.ones(total.shape, dtype=np.float64)
    logarithm = math.log(2) - math.log(level)
    # The variance of nearly equal scores is a small difference of large numbers, and its root would show the rounding.
    variance = spread_of(total, squares, draws).astype(np.float64) / (draws * (draws - 1) * resolution**2)
    return np.sqrt(2 * variance * logarithm / draws) + 7 * logarithm / (3 * (draws - 1))
