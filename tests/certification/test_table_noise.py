"""Noise on the CPU: by definition the value of a 64-bit word, however it is cut; and its law is the rounded normal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from twinproof.certification.grid_noise import write_noise
from twinproof.certification.noise_tables import NoiseTable, Stream, generator_at, normal_table, padded, words_from

STREAM = Stream(words=(77 << 64) + 5, refinement=(78 << 64) + 6)
Floats = NDArray[np.float32]


def _noise(table: NoiseTable, draws: int, dimension: int, *, first: int = 0, stream: Stream = STREAM) -> Floats:
    out = np.full((draws, dimension), np.nan, dtype=np.float32)
    assert sum(len(part) for part in write_noise(table, stream, first, out)) == draws
    return out


def _by_definition(table: NoiseTable, draws: int, dimension: int, first: int = 0) -> NDArray[np.int64]:
    width = padded(dimension)
    high, low = (
        words_from(generator_at(key, first * width // 8), draws * width // 8).astype(np.uint64)
        for key in (STREAM.words, STREAM.refinement)
    )
    return table.values(high << np.uint64(32) | low).reshape(draws, width)[:, :dimension]


@pytest.mark.parametrize("steps", [64.0, 127.5, 1023.5, 32767.5, 100_000.0])
@pytest.mark.parametrize(("dimension", "first"), [(3, 0), (784, 5), (40_000, 1)])
def test_every_value_is_that_of_its_word(steps: float, dimension: int, first: int) -> None:
    table, draws = normal_table(steps), max(2, 100_000 // dimension)
    assert (_noise(table, draws, dimension, first=first) == _by_definition(table, draws, dimension, first)).all()


def _with_ties() -> NoiseTable:
    """Boundaries whose first halves are words that the stream really has, so that the second halves decide."""
    words = np.unique(words_from(generator_at(STREAM.words, 0), 40)).astype(np.uint64)
    lower = np.random.default_rng(2).integers(0, 1 << 32, size=len(words), dtype=np.uint64)
    bounds = np.sort(words << np.uint64(32) | lower)
    return NoiseTable(len(bounds) // 2, bounds[: len(bounds) // 2 * 2])


def test_ties_are_decided_by_the_refinement() -> None:
    table = _with_ties()
    wanted = _by_definition(table, 40, 8)
    assert (_noise(table, 40, 8) == wanted).all()
    planted = _noise(table, 40, 8, stream=Stream(STREAM.words, STREAM.refinement + 1))
    assert (planted != wanted).sum() > 50, "another refinement decides otherwise"


@pytest.mark.parametrize("cuts", [[1000], [1, 999], [41, 42, 917], [500, 500]])
def test_cutting_changes_nothing(cuts: list[int]) -> None:
    table = normal_table(127.5)
    ends = np.cumsum([0, *cuts])
    parts = [_noise(table, count, 100, first=int(first)) for first, count in zip(ends, cuts, strict=False)]
    assert (np.concatenate(parts) == _noise(table, 1000, 100)).all()


def _assert_law(values: Floats, steps: float) -> None:
    """Chi-square over the cells within four standard deviations and the two tails; false alarm 1e-7."""
    limit = math.ceil(4 * steps)
    bounds = np.concatenate(([0.0], normal_table(steps).boundaries.astype(np.float64) * 2.0**-64, [1.0]))
    cells, reach = np.diff(bounds), len(bounds) // 2 - 1
    inner = slice(reach - limit, reach + limit + 1)
    expected = np.concatenate(([cells[: reach - limit].sum()], cells[inner], [cells[reach + limit + 1 :].sum()])) * values.size
    found = np.bincount(np.clip(values.ravel().astype(np.int64), -limit - 1, limit + 1) + limit + 1, minlength=2 * limit + 3)
    statistic = float(((found - expected) ** 2 / expected).sum())
    assert statistic <= float(chi2.isf(1e-7, len(expected) - 1)), f"chi-square {statistic:.0f}"
    standard = values.astype(np.float64) / math.sqrt(steps**2 + 1 / 12)
    error = 5.4 / math.sqrt(values.size)  # 5.4 standard errors: 1e-7
    assert abs(standard.mean()) <= error, "mean"
    assert abs((standard**2).mean() - 1) <= math.sqrt(2) * error, "variance"


DRAWS, DIMENSION = 20_000, 1000


@pytest.mark.parametrize("steps", [64.0, 127.5])
def test_the_law_of_twenty_million_draws(steps: float) -> None:
    _assert_law(_noise(normal_table(steps), DRAWS, DIMENSION), steps)


def _shifted() -> Floats:
    """Every boundary an eighth of a cell too far up."""
    table = normal_table(64.0)
    bounds = table.boundaries.copy()
    bounds[:-1] += (bounds[1:] - bounds[:-1]) // np.uint64(8)
    return _noise(NoiseTable(table.reach, bounds), DRAWS, DIMENSION)


def _reused() -> Floats:
    """The same words for every second draw."""
    values = _noise(normal_table(64.0), DRAWS, DIMENSION)
    values[1::2] = values[::2]
    return values


def _sigma_off() -> Floats:
    """A thousandth too wide."""
    return _noise(normal_table(64.0 * 1.001), DRAWS, DIMENSION)


@pytest.mark.parametrize("planted", [_shifted, _reused, _sigma_off])
def test_planted_laws_are_caught(planted: Callable[[], Floats]) -> None:
    with pytest.raises(AssertionError, match=r"chi-square|mean|variance"):
        _assert_law(planted(), 64.0)


def _largest_correlation(values: Floats) -> float:
    """Between neighbouring draws, and between coordinates 1, 2, 4 and 8 apart: within words, blocks and across them."""
    centred = values.astype(np.float64) / 64
    pairs = [(centred[:-1], centred[1:])] + [(centred[:, :-lag], centred[:, lag:]) for lag in (1, 2, 4, 8)]
    found = [(one * other).mean() for one, other in pairs]
    found += [((one**2 - 1) * (other**2 - 1)).mean() / 2 for one, other in pairs]
    return float(np.abs(found).max())


def test_draws_and_coordinates_do_not_know_each_other() -> None:
    values = _noise(normal_table(64.0), 2000, DIMENSION)
    limit = 6 / math.sqrt(values.size)
    assert _largest_correlation(values) < limit
    values[1::2, ::50] = values[::2, ::50]  # planted: one coordinate in fifty is used for two draws
    assert _largest_correlation(values) > limit
