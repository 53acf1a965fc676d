"""The Triton kernel against the definition: on a GPU, or on a CPU where Triton interprets it (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)

from twinproof.certification.noise_kernel import write_noisy_rows  # noqa: E402
from twinproof.certification.noise_tables import (  # noqa: E402
    NoiseTable,
    generator_at,
    laplace_table,
    normal_table,
    padded,
    words_from,
)

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
WORDS, REFINEMENT = [(901 << 64) + 17, (3 << 120) + 5, 77], [(902 << 64) + 18, (4 << 120) + 6, 78]
SPAN = 9


def _written(
    table: NoiseTable,
    dimension: int,
    *,
    steps: float,
    row: int = 0,
    rows: int = 27,
    after: int = 0,
    grid: float = 1.0,
    laplace: bool = False,
) -> NDArray[np.float64]:
    """Noise in steps of the grid, read back from the quotients of an input of zeros, which are exact for one level."""
    out = torch.full((rows, dimension), torch.nan, device=DEVICE)
    keys = [
        [key & (2**64 - 1), key >> 64, other & (2**64 - 1), other >> 64] for key, other in zip(WORDS, REFINEMENT, strict=True)
    ]
    tables = (torch.from_numpy(table.high_words.view(np.int32)), torch.from_numpy(table.boundaries.view(np.int64)))
    write_noisy_rows(
        out,
        torch.zeros(len(keys), dimension, device=DEVICE),
        torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64)).to(DEVICE),
        (tables[0].to(DEVICE), tables[1].to(DEVICE)),
        row=row,
        span=SPAN,
        after=after,
        width=padded(dimension),
        steps=steps,
        grid=grid,
        levels=1,
        laplace=laplace,
    )
    return np.asarray(out.cpu(), dtype=np.float64) / grid


def _wanted(table: NoiseTable, dimension: int, row: int = 0, rows: int = 27, after: int = 0) -> NDArray[np.int64]:
    """By the definition, row by row."""
    blocks, made = padded(dimension) // 8, []
    for number in range(row, row + rows):
        first = (after + number % SPAN) * blocks
        high, low = (
            words_from(generator_at(keys[number // SPAN], first), blocks).astype(np.uint64) for keys in (WORDS, REFINEMENT)
        )
        made.append(table.values(high << np.uint64(32) | low)[:dimension])
    return np.stack(made)


@pytest.mark.parametrize("steps", [64.0, 127.5, 32767.5])
@pytest.mark.parametrize("dimension", [1, 21, 784])
def test_rows_are_those_of_the_definition(steps: float, dimension: int) -> None:
    table = normal_table(steps)
    assert (_written(table, dimension, steps=steps) == _wanted(table, dimension)).all()


@pytest.mark.parametrize("steps", [64.0, 4095.75, 65535.5])
@pytest.mark.parametrize("dimension", [1, 21, 784])
def test_rows_of_laplace_noise_are_those_of_the_definition(steps: float, dimension: int) -> None:
    table = laplace_table(steps)
    assert (_written(table, dimension, steps=steps, laplace=True) == _wanted(table, dimension)).all()


@pytest.mark.parametrize(("row", "rows", "after"), [(0, 1, 0), (8, 2, 5), (26, 1, 1), (4, 20, 2**31), (0, 27, 2**40)])
def test_any_rows_from_any_draw(row: int, rows: int, after: int) -> None:
    table = normal_table(127.5)
    found = _written(table, 30, steps=127.5, row=row, rows=rows, after=after)
    assert (found == _wanted(table, 30, row=row, rows=rows, after=after)).all()


def test_the_grid_scales_the_noise() -> None:
    table = normal_table(64.0)
    assert (_written(table, 10, steps=64.0, grid=0.125) == _wanted(table, 10)).all()


def test_a_wrong_guess_changes_nothing() -> None:
    """The guess of a table five times as wide is always wrong; the search finds every value all the same."""
    table = normal_table(64.0)
    assert (_written(table, 40, steps=320.0) == _wanted(table, 40)).all()


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_a_guess_that_is_off_by_one_or_two_changes_nothing(shift: int) -> None:
    """Cells are those of the law, moved by whole steps: one off is put right by trying the neighbour, two by a search."""
    lawful = laplace_table(64.0)
    table = _moved(lawful, shift)
    wanted = _wanted(table, 40)
    assert (wanted == _wanted(lawful, 40) + shift).all(), "the planted shift is one"
    assert (_written(table, 40, steps=64.0, laplace=True) == wanted).all()


def _moved(table: NoiseTable, shift: int) -> NoiseTable:
    """Every value but the outermost ones ``shift`` steps further."""
    ends = np.arange(1, abs(shift) + 1, dtype=np.uint64)
    parts = (ends, table.boundaries[:-shift]) if shift > 0 else (table.boundaries[-shift:], np.uint64(0) - ends[::-1])
    return NoiseTable(table.reach, np.concatenate(parts))


def test_ties_are_decided_by_the_refinement() -> None:
    """Boundaries whose first halves are words that the streams really have."""
    words = np.unique(np.concatenate([words_from(generator_at(key, 0), 2 * SPAN) for key in WORDS])).astype(np.uint64)
    lower = np.random.default_rng(2).integers(0, 1 << 32, size=len(words), dtype=np.uint64)
    bounds = np.sort(words << np.uint64(32) | lower)[: len(words) // 2 * 2]
    table = NoiseTable(len(bounds) // 2, bounds)
    wanted = _wanted(table, 16)
    assert (_written(table, 16, steps=64.0) == wanted).all()
    blunt = NoiseTable(table.reach, bounds >> np.uint64(32) << np.uint64(32))
    assert (_written(blunt, 16, steps=64.0) != wanted).sum() > 100, "without second halves ties fall otherwise"
