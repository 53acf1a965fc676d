"""Raw features to stored levels, between bounds that are declared, public, or paid for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.data.config import EVERY_OTHER_FEATURE
from twinproof.data.parts import Records
from twinproof.data.record import Scaling
from twinproof.errors import ConfigError, DataError

FEATURE_LEVELS = 65_535
WIDENING = 0.05

_ROWS_AT_A_TIME = 1024


def to_levels(values: NDArray[np.float64], scaling: Scaling) -> NDArray[np.uint16]:
    """Each feature clipped to its bounds and rounded to the nearest of 65,536 levels between them.

    Guarantees
        A row of the result is a function of the same row of ``values`` and the bounds alone. Low becomes 0 and high 65,535;
        in between the value moves by at most half a level. Clipping comes first, so that no difference can overflow.
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
        return Scaling(low=_floats(low - margin), high=_floats(high + margin), source="test")


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
    """The error for features that came without any word on their bounds: the three choices."""
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


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
