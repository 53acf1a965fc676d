"""Noise tables against 60-digit arithmetic, the words that are looked up in them, and the law of what is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal, getcontext, localcontext
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from twinproof.certification.grid_noise import (
    BLOCK_WORDS,
    CUTS,
    NoiseTable,
    Stream,
    generator_at,
    noise_table,
    padded,
    table_distance,
    word_at,
    words_from,
    write_noise,
)
from twinproof.keys import Key
from twinproof.layers.noise import Law

GAUSSIAN, LAPLACE = Law.GAUSSIAN, Law.LAPLACE
STEPS = [64.0, 63.75 * 2, 127.99]
each_law = pytest.mark.parametrize("law", list(Law))
Floats = NDArray[np.float32]


def _density_at_zero() -> Decimal:
    """1 / sqrt(2 pi), pi from Machin's formula."""

    def arctan(inverse: int) -> Decimal:
        x = Decimal(1) / inverse
        return sum(((-1) ** k * x ** (2 * k + 1) / (2 * k + 1) for k in range(50)), Decimal(0))

    return 1 / (2 * 4 * (4 * arctan(5) - arctan(239))).sqrt()


def _normal_tail(x: Decimal) -> Decimal:
    """The probability beyond x >= 0, by the series of the odd double factorials, all of whose terms are positive."""
    term, total, k = x, x, 1
    while term > Decimal("1e-45"):
        term *= x * x / (2 * k + 1)
        total, k = total + term, k + 1
    return Decimal("0.5") - _density_at_zero() * (-x * x / 2).exp() * total


TAILS: dict[Law, Callable[[Decimal], Decimal]] = {GAUSSIAN: _normal_tail, LAPLACE: lambda x: (-x).exp() / 2}


@lru_cache(maxsize=6)
def _cells(law: Law, steps: float) -> tuple[Decimal, ...]:
    return exact_cells(TAILS[law], steps, math.ceil(CUTS[law] * steps))


@each_law
@pytest.mark.parametrize("steps", STEPS)
def test_the_distance_to_the_rounded_law_is_within_the_bound(law: Law, steps: float) -> None:
    found, precision = distance_to(noise_table(law, steps), _cells(law, steps)), getcontext().prec
    assert found <= table_distance(law, steps)
    # The proof adds up the worst of every rounding; a bound that is a thousand times too large would prove little care.
    assert found > table_distance(law, steps) / 1000
    assert getcontext().prec == precision, "decimal's precision is left alone"


@pytest.mark.parametrize(
    ("law", "steps", "cells", "error_in_units"),
    [
        (GAUSSIAN, 32767.5, (1, 7, 1000, 20_000, 65_535, 120_000, 200_000, 250_000), lambda c: 3.5 * c**2 + 11),
        (LAPLACE, 65_535.9, (1, 7, 1000, 65_535, 300_000, 1_000_000, 2_000_000), lambda c: 3 * c + 9.2),
    ],
)
def test_cells_of_a_fine_grid_have_the_relative_error_of_the_proof(
    law: Law, steps: float, cells: tuple[int, ...], error_in_units: Callable[[float], float]
) -> None:
    """A fine grid has too many cells to add up with 60 digits; some of each size are compared."""
    table = noise_table(law, steps)
    for k in cells:
        exact, error = cell_error(table, TAILS[law], steps, k)
        assert error <= exact * error_in_units(k / steps) * 2.0**-53 + 2.0**-65


PLANTED: dict[str, Callable[[NoiseTable, Law], NDArray[np.uint64]]] = {
    "moved by 2^-44": lambda table, law: table.boundaries + np.uint64(1 << 20),
    "shifted by a cell": lambda table, law: np.append(table.boundaries[1:], table.boundaries[-1] + np.uint64(1)),
    "32 bits": lambda table, law: table.boundaries >> np.uint64(32) << np.uint64(32),
    "off by 1e-12": lambda table, law: (table.boundaries.astype(np.float64) * (1 - 1e-12)).astype(np.uint64),
    # One cell more on each side, which goes to its neighbour.
    "scale off by a billionth": lambda table, law: noise_table(law, 64.0 * (1 + 1e-9)).boundaries[1:-1],
}


@each_law
@pytest.mark.parametrize("name", PLANTED)
def test_planted_tables_are_beyond_the_bound(law: Law, name: str) -> None:
    table = noise_table(law, 64.0)
    planted = NoiseTable(table.reach, PLANTED[name](table, law))
    assert distance_to(planted, _cells(law, 64.0)) > table_distance(law, 64.0)


def test_a_planted_density_in_place_of_its_integral_is_beyond_the_bound() -> None:
    planted = NoiseTable.of_cells(np.exp(-np.arange(2304, 0, -1) / 64) / 128)
    assert distance_to(planted, _cells(LAPLACE, 64.0)) > table_distance(LAPLACE, 64.0)


@pytest.mark.parametrize(("law", "steps"), [(GAUSSIAN, 64.0), (GAUSSIAN, 127.5), (GAUSSIAN, 32767.5), (LAPLACE, 8000.0)])
def test_a_table_grows_is_symmetric_and_its_indices_are_the_table(law: Law, steps: float) -> None:
    table = noise_table(law, steps)
    bounds = table.boundaries
    assert len(bounds) == 2 * table.reach == 2 * math.ceil(CUTS[law] * steps)
    assert (bounds[:-1] <= bounds[1:]).all()
    assert (bounds + bounds[::-1] == 0).all(), "each pair adds up to 2^64"
    words = np.random.default_rng(1).integers(0, WORD, size=100_000, dtype=np.uint64, endpoint=False)
    values, begin = table.values(words), (words >> np.uint64(48)).astype(np.intp)
    guided = table.guide[begin]
    sure = ~np.isnan(guided)
    assert (guided[sure] == values[sure]).all()
    assert sure.mean() > (0.97 if steps < 200 else -1)
    assert (values + table.reach >= table.starts[begin]).all()
    assert (values + table.reach <= table.starts[begin + 1]).all()
    high = (words >> np.uint64(32)).astype(np.int64)
    assert (table.ladder[values + table.reach] <= high).all()
    assert (table.ladder[values + table.reach + 1] >= high).all()


@pytest.mark.parametrize(("law", "cells"), [(GAUSSIAN, 17), (LAPLACE, 72)])
def test_the_bound_is_the_documented_formula(law: Law, cells: int) -> None:
    assert table_distance(law, 64.0) == pytest.approx(2.0**-49 + cells * 64 * 2.0**-64, rel=1e-12)


MASK = (1 << 64) - 1


def _cipher(counter: int, key: int) -> list[int]:
    """Philox4x64-10, written out from its definition: the four 64-bit words of a counter below 2^64."""
    words, low, high = [counter, 0, 0, 0], key & MASK, key >> 64
    for _ in range(10):
        one, two = words[0] * 0xD2E7470EE14C6C93, words[2] * 0xCA5A826395121157
        words = [two >> 64 ^ words[1] ^ low, two & MASK, one >> 64 ^ words[3] ^ high, one & MASK]
        low, high = low + 0x9E3779B97F4A7C15 & MASK, high + 0xBB67AE8584CAA73B & MASK
    return words


@pytest.mark.parametrize("key", [0, 5, (1 << 127) + 12345, (1 << 128) - 1])
@pytest.mark.parametrize("block", [0, 1, 977, 1 << 40])
def test_words_are_those_of_the_cipher_low_half_first(key: int, block: int) -> None:
    wanted = [
        half for number in range(3) for word in _cipher(block + number + 1, key) for half in (word & 0xFFFFFFFF, word >> 32)
    ]
    assert words_from(generator_at(key, block), 3).tolist() == wanted
    assert [word_at(key, block * BLOCK_WORDS + at) for at in range(24)] == wanted


def test_planted_block_that_numpy_would_start_with_is_caught() -> None:
    assert words_from(np.random.Philox(key=5, counter=0), 1).tolist() != words_from(generator_at(5, 1), 1).tolist()


@pytest.mark.parametrize(("dimension", "words"), [(1, 8), (8, 8), (9, 16), (784, 784), (3072, 3072), (3073, 3080)])
def test_vectors_take_whole_blocks(dimension: int, words: int) -> None:
    assert padded(dimension) == words


def test_every_name_has_keys_of_its_own() -> None:
    streams = [
        Stream.named(Key.from_seed(seed), purpose, index)
        for seed in (1, 2)
        for purpose in ("select", "estimate", "select-shared")
        for index in (0, 1, 2**40)
    ]
    keys = [key for stream in streams for key in (stream.words, stream.refinement)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 128 for key in keys)
    assert max(keys) > 1 << 120, "both halves of a key are used"


def test_a_stream_is_the_documented_one() -> None:
    key = Key.from_seed(6)
    for index, block, place in ((3, 0, 3), (1023, 0, 1023), (1024, 1, 0), (5000, 4, 904)):
        both = key.stream("estimate", block, length=32 * 1024)[32 * place : 32 * place + 32]
        wanted = [int.from_bytes(both[:16], "little"), int.from_bytes(both[16:], "little")]
        stream = Stream.named(key, "estimate", index)
        assert [stream.words, stream.refinement] == wanted


STREAM = Stream(words=(77 << 64) + 5, refinement=(78 << 64) + 6)


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
    table, draws = noise_table(GAUSSIAN, steps), max(2, 100_000 // dimension)
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
    table = noise_table(GAUSSIAN, 127.5)
    ends = np.cumsum([0, *cuts])
    parts = [_noise(table, count, 100, first=int(first)) for first, count in zip(ends, cuts, strict=False)]
    assert (np.concatenate(parts) == _noise(table, 1000, 100)).all()


def _assert_law(values: Floats, steps: float) -> None:
    """Chi-square over the cells within four standard deviations and the two tails; false alarm 1e-7."""
    limit = math.ceil(4 * steps)
    bounds = np.concatenate(([0.0], noise_table(GAUSSIAN, steps).boundaries.astype(np.float64) * 2.0**-64, [1.0]))
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
    _assert_law(_noise(noise_table(GAUSSIAN, steps), DRAWS, DIMENSION), steps)


def _shifted() -> Floats:
    """Every boundary an eighth of a cell too far up."""
    table = noise_table(GAUSSIAN, 64.0)
    bounds = table.boundaries.copy()
    bounds[:-1] += (bounds[1:] - bounds[:-1]) // np.uint64(8)
    return _noise(NoiseTable(table.reach, bounds), DRAWS, DIMENSION)


def _reused() -> Floats:
    """The same words for every second draw."""
    values = _noise(noise_table(GAUSSIAN, 64.0), DRAWS, DIMENSION)
    values[1::2] = values[::2]
    return values


def _sigma_off() -> Floats:
    """A thousandth too wide."""
    return _noise(noise_table(GAUSSIAN, 64.0 * 1.001), DRAWS, DIMENSION)


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
    values = _noise(noise_table(GAUSSIAN, 64.0), 2000, DIMENSION)
    limit = 6 / math.sqrt(values.size)
    assert _largest_correlation(values) < limit
    values[1::2, ::50] = values[::2, ::50]  # planted: one coordinate in fifty is used for two draws
    assert _largest_correlation(values) > limit


WORD = 1 << 64


def exact_cells(tail: Callable[[Decimal], Decimal], steps: float, reach: int) -> tuple[Decimal, ...]:
    """The probabilities of the cells 1, 2, ... up to ``reach``, and of all beyond; ``tail`` is the probability beyond x > 0."""
    with localcontext() as context:
        context.prec = 60
        tails = [tail((k - Decimal("0.5")) / Decimal(steps)) for k in range(1, reach + 1)]
        return (*(near - far for near, far in itertools.pairwise(tails)), tails[-1])


def distance_to(table: NoiseTable, half: tuple[Decimal, ...]) -> float:
    """The total variation distance between the law of the table and the symmetric one with these cells on each side."""
    bounds = [0, *(int(bound) for bound in table.boundaries), WORD]
    got = [Decimal(above - below) / WORD for below, above in itertools.pairwise(bounds)]
    wanted = [*reversed(half), 1 - 2 * sum(half), *half]
    assert len(got) == len(wanted)
    return float(sum(abs(one - other) for one, other in zip(got, wanted, strict=True)) / 2)


def cell_error(table: NoiseTable, tail: Callable[[Decimal], Decimal], steps: float, k: int) -> tuple[float, float]:
    """The probability of cell k, and how far the table is off it."""
    got = int(table.boundaries[table.reach - k]) - int(table.boundaries[table.reach - k - 1])
    with localcontext() as context:
        context.prec = 60
        near, far = (tail((k + half) / Decimal(steps)) for half in (Decimal("-0.5"), Decimal("0.5")))
        return float(near - far), abs(float(Decimal(got) / WORD - (near - far)))
