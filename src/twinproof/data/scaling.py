"""Raw features to stored levels, between bounds that are declared, public, or paid for.

The private estimate: every feature has a histogram over the same fixed bins, zero and for each sign the magnitudes
[2^e, 2^(e+1)), and every count gets Gaussian noise. A feature's bounds are the outer edges of the bins that stand out of the
noise. Bounds are therefore within a factor of two of the values, and values too rare to stand out are clipped.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from twinproof.data.record import RangeSpending, Records, Scaling
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key

FEATURE_LEVELS = 65_535
WIDENING = 0.05
EVERY_OTHER_FEATURE = "*"
"""Key of ``ranges`` whose bounds hold for every feature that is not named itself."""

_ROWS_AT_A_TIME = 1024


def to_levels(values: NDArray[np.float64], scaling: Scaling) -> NDArray[np.uint16]:
    """Each feature clipped to its bounds and rounded to the nearest of 65,536 levels between them.

    A row of the result is a function of that row and the bounds alone. Clipping comes first, so that no difference overflows.
    """
    low, high = np.array(scaling.low), np.array(scaling.high)
    levels = np.empty(values.shape, dtype=np.uint16)
    for start in range(0, len(values), _ROWS_AT_A_TIME):  # a large table has no room for copies of itself
        rows = slice(start, start + _ROWS_AT_A_TIME)
        share = (np.clip(values[rows], low, high) - low) / (high - low)
        levels[rows] = np.rint(share * FEATURE_LEVELS)
    return levels


def check_finite(records: Records, names: tuple[str, ...]) -> None:
    """Ends in one error that names the first record and feature that is NaN or infinite."""
    broken = np.argwhere(~np.isfinite(records.inputs))
    if len(broken):
        row, column = (int(index) for index in broken[0])
        raise DataError(
            "a feature is not a finite number",
            where=f"{records.where}, record {records.row(row)}, feature {names[column]!r}",
            got=f"{records.inputs[row, column]} ({len(broken)} such values in all)",
            wanted="finite numbers",
            fix="fill in or leave out records with missing values",
        )


def declared_scaling(ranges: Mapping[str, tuple[float, float]], names: tuple[str, ...]) -> Scaling:
    """Bounds as declared, one pair for every feature; ``*`` stands for every feature that is not named itself."""
    unknown = [name for name in ranges if name not in names and name != EVERY_OTHER_FEATURE]
    missing = [name for name in names if name not in ranges and EVERY_OTHER_FEATURE not in ranges]
    if unknown or missing:
        problems = [f"unknown: {', '.join(unknown)}"] if unknown else []
        problems += [f"missing: {', '.join(missing)}"] if missing else []
        raise ConfigError(
            "the declared ranges do not fit the features",
            where="ranges",
            got="; ".join(problems),
            wanted=f"one [low, high] for each of {', '.join(names)}",
            fix=f"name each feature once; the key {EVERY_OTHER_FEATURE!r} holds for every feature that is not named",
        )
    pairs = [ranges[name] if name in ranges else ranges[EVERY_OTHER_FEATURE] for name in names]
    return Scaling(low=tuple(low for low, _ in pairs), high=tuple(high for _, high in pairs), source="declared")


def scaling_of_test(values: NDArray[np.float64]) -> Scaling:
    """Bounds that hold the test records (declared public), widened on both sides so that a constant feature has width too."""
    low, high = values.min(axis=0), values.max(axis=0)
    with np.errstate(over="ignore"):  # a width that overflows is refused by Scaling, with a clear error
        width = high - low
        constant = np.maximum(np.abs(low), 1.0)
        margin = WIDENING * np.where(width > 0, width, constant)
        return Scaling(low=tuple((low - margin).tolist()), high=tuple((high + margin).tolist()), source="test")


def check_fits(scaling: Scaling, names: tuple[str, ...]) -> None:
    """Ends in an error where bounds that were stored earlier have another number of features than the data."""
    if len(scaling.low) != len(names):
        raise ConfigError(
            "the given bounds belong to other data",
            where="scaling",
            got=f"bounds of {len(scaling.low)} features",
            wanted=f"bounds of {len(names)} features",
            fix="load the data that the bounds were made for",
        )


def ranges_needed(where: str, names: tuple[str, ...]) -> ConfigError:
    """The error for features without bounds: the three choices."""
    return ConfigError(
        "features need bounds before they can be scaled",
        where="ranges",
        got=f"no ranges for {where} ({len(names)} features)",
        wanted=(
            "declared bounds (ranges = {age = [0, 120], ...}, from general knowledge, costs nothing); or 'test' (bounds of the "
            "test records, declared public); or 'private' (estimated from the training records, counted in the ledger)"
        ),
        fix="set `ranges` to one of the three; the smallest and largest training values themselves would break the promise",
    )


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
    low, high = zip(*map(_outer_edges, kept), strict=True)
    if missed := [name for name, row in zip(names, kept, strict=True) if not row.any()]:
        warnings.warn(
            f"no values of {', '.join(missed)} stood out of the noise; the declared fallback {list(FALLBACK)} is used. "
            "Declare their ranges, or lower ranges_noise (which costs more privacy)",
            RangeWarning,
            stacklevel=2,
        )
    return Scaling(low=low, high=high, source="private", spending=RangeSpending(noise_multiplier))


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
