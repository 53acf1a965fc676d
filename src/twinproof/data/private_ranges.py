"""Feature bounds from the training records, paid for: one Gaussian mechanism over fixed histograms.

Every feature has a histogram over the same bins, which no data decides: zero, and for each sign the magnitudes
[2^e, 2^(e+1)). Gaussian noise goes on every count; a feature's bounds are the outer edges of the bins that stand out of the
noise. Each bound lies within a factor of two of values that were there, and values too rare to stand out are clipped: the
price of bins that nobody had to look at the data for.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from twinproof.data.record import RangeSpending, Scaling
from twinproof.randomness import Key

LOWEST_EXPONENT = -40
HIGHEST_EXPONENT = 40
BINS = 2 * (HIGHEST_EXPONENT - LOWEST_EXPONENT + 1) + 1
FALLBACK = (-1.0, 1.0)
FALSE_BIN_PROBABILITY = 1e-3
"""Bound on the probability that any empty bin of any feature is taken for a filled one."""

_ZERO_BIN = BINS // 2
_PURPOSE = "feature ranges"


class RangeWarning(UserWarning):
    """A private estimate found nothing above its noise and used the declared fallback."""


def private_scaling(values: NDArray[np.float64], names: tuple[str, ...], noise_multiplier: float, key: Key) -> Scaling:
    """Bounds of every feature, estimated from the training records ``values`` (records, features).

    Guarantees
        The bounds are a post-processing of one Gaussian mechanism with noise multiplier ``noise_multiplier`` for one record
        replaced by nothing. A record adds one count to one bin of each of the d histograms, so two neighbours differ by d
        ones, at l2 distance sqrt(d); the noise has standard deviation ``noise_multiplier * sqrt(d)``. Bins, threshold and
        fallback depend on d and the noise multiplier only. Counts are integers, so rounding the noisy counts to integers is
        post-processing too, and no low-order bits of floating-point noise leave. All that is used of a count is one
        comparison, which float64 quantiles get wrong with probability below 2^-49; the answer is within total variation
        d * 163 * 2^-49 of the exact mechanism's.
    """
    features = values.shape[1]
    deviation = noise_multiplier * math.sqrt(features)
    noise = np.stack([gaussian_noise(key, feature, deviation=deviation, count=BINS) for feature in range(features)])
    noisy = np.rint(range_histograms(values) + noise)
    kept = noisy > keep_threshold(deviation, features)
    bounds = [_outer_edges(row) for row in kept]
    _warn_of_fallback([name for name, row in zip(names, kept, strict=True) if not row.any()])
    return Scaling(
        low=tuple(low for low, _ in bounds),
        high=tuple(high for _, high in bounds),
        source="private",
        spending=RangeSpending(noise_multiplier),
    )


def range_histograms(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Counts (features, BINS): every record adds exactly one to exactly one bin of each feature."""
    bins = bin_of(values)
    return np.stack([np.bincount(column, minlength=BINS) for column in bins.T]).astype(np.int64)


def bin_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bin of each value: ordered as the values are, with smaller magnitudes in the zero bin and larger in the last."""
    _, exponent = np.frexp(values)  # |value| = m * 2^exponent with 1/2 <= m < 1, exactly: no logarithm to round
    step = np.clip(exponent.astype(np.int64) - 1, LOWEST_EXPONENT - 1, HIGHEST_EXPONENT) - LOWEST_EXPONENT + 1
    step[values == 0] = 0
    return _ZERO_BIN + np.where(values < 0, -step, step)


def bin_edges() -> NDArray[np.float64]:
    """Edges (BINS + 1,) in ascending order; bin i lies between edges i and i + 1."""
    powers = 2.0 ** np.arange(LOWEST_EXPONENT, HIGHEST_EXPONENT + 2)
    return np.concatenate([-powers[::-1], powers])


def keep_threshold(deviation: float, features: int) -> float:
    """The count that an empty bin exceeds so seldom that all of them together do with ``FALSE_BIN_PROBABILITY`` at most."""
    from scipy.special import ndtri  # here, because importing scipy takes time that most loads need not spend

    return float(math.ceil(-deviation * float(ndtri(FALSE_BIN_PROBABILITY / (features * BINS)))))


def gaussian_noise(key: Key, counter: int, *, deviation: float, count: int) -> NDArray[np.float64]:
    """``count`` Gaussian numbers that belong to ``counter``."""
    return deviation * key.normals(_PURPOSE, counter, count=count)


def _outer_edges(kept: NDArray[np.bool_]) -> tuple[float, float]:
    filled = np.flatnonzero(kept)
    if len(filled) == 0:
        return FALLBACK
    edges = bin_edges()
    return float(edges[filled[0]]), float(edges[filled[-1] + 1])


def _warn_of_fallback(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"no values of {', '.join(names)} stood out of the noise; the declared fallback {list(FALLBACK)} is used. "
            "Declare their ranges, or lower ranges_noise (which costs more privacy)",
            RangeWarning,
            stacklevel=2,
        )
