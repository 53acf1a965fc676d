"""The Triton kernels against definitions and torch: on a GPU, or on a CPU where Triton interprets them (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from twinproof.certification.grid_noise import NoiseTable, generator_at, noise_table, padded, words_from
from twinproof.layers.noise import Law

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)

from twinproof.certification.layer_kernels import fits, normed, pooled, pooled_sums  # noqa: E402
from twinproof.certification.noise_kernel import write_noisy_rows  # noqa: E402

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


@pytest.mark.parametrize(
    ("law", "steps"),
    [(Law.GAUSSIAN, steps) for steps in (64.0, 127.5, 32767.5)] + [(Law.LAPLACE, steps) for steps in (64.0, 4095.75, 65535.5)],
)
@pytest.mark.parametrize("dimension", [1, 21, 784])
def test_rows_are_those_of_the_definition(law: Law, steps: float, dimension: int) -> None:
    table = noise_table(law, steps)
    assert (_written(table, dimension, steps=steps, laplace=law is Law.LAPLACE) == _wanted(table, dimension)).all()


@pytest.mark.parametrize(("row", "rows", "after"), [(0, 1, 0), (8, 2, 5), (26, 1, 1), (4, 20, 2**31), (0, 27, 2**40)])
def test_any_rows_from_any_draw(row: int, rows: int, after: int) -> None:
    table = noise_table(Law.GAUSSIAN, 127.5)
    found = _written(table, 30, steps=127.5, row=row, rows=rows, after=after)
    assert (found == _wanted(table, 30, row=row, rows=rows, after=after)).all()


def test_the_grid_scales_the_noise() -> None:
    table = noise_table(Law.GAUSSIAN, 64.0)
    assert (_written(table, 10, steps=64.0, grid=0.125) == _wanted(table, 10)).all()


def test_a_wrong_guess_changes_nothing() -> None:
    """The guess of a table five times as wide is always wrong; the search finds every value all the same."""
    table = noise_table(Law.GAUSSIAN, 64.0)
    assert (_written(table, 40, steps=320.0) == _wanted(table, 40)).all()


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_a_guess_that_is_off_by_one_or_two_changes_nothing(shift: int) -> None:
    """Cells are those of the law, moved by whole steps: one off is put right by trying the neighbour, two by a search."""
    lawful = noise_table(Law.LAPLACE, 64.0)
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


# (rows, channels, height, width, groups): the house network's maps, odd sizes, groups that fill no power of two, one group.
NORM_SHAPES = [
    (3, 32, 14, 14, 8),
    (2, 64, 7, 7, 8),
    (2, 128, 4, 4, 8),
    (2, 6, 5, 3, 3),
    (1, 24, 5, 5, 8),
    (2, 9, 3, 3, 3),
    (2, 5, 2, 2, 1),
]


def norm_maps(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, channels, height, width, _ = shape
    values = 1 + 3 * torch.randn(rows, channels, height, width, generator=generator)
    scale, shift = torch.randn(2, channels, generator=generator)
    return values.to(DEVICE), scale.to(DEVICE), shift.to(DEVICE)


def of_torch(values: Tensor, groups: int, scale: Tensor, shift: Tensor, gelu: bool) -> Tensor:
    wanted = F.group_norm(values, groups, scale, shift, 1e-5)
    return F.gelu(wanted) if gelu else wanted.relu()


def of_kernel(values: Tensor, groups: int, scale: Tensor, shift: Tensor, gelu: bool) -> Tensor:
    inner = values.permute(0, 2, 3, 1).contiguous()
    return normed(inner, groups, scale, shift, 1e-5, gelu=gelu).permute(0, 3, 1, 2)


@pytest.mark.parametrize("shape", NORM_SHAPES)
@pytest.mark.parametrize("gelu", [False, True])
def test_normalisation_equals_torch(shape: tuple[int, ...], gelu: bool) -> None:
    values, scale, shift = norm_maps(shape)
    got, wanted = (work(values, shape[-1], scale, shift, gelu) for work in (of_kernel, of_torch))
    assert float((got - wanted).abs().max()) < 1e-5


def test_nan_stays_in_its_group() -> None:
    values, scale, shift = norm_maps(NORM_SHAPES[1])
    values[0, 0, 3, 3] = float("nan")
    got = of_kernel(values, 8, scale, shift, True)
    assert bool(got[0, :8].isnan().all())
    assert not bool(got[0, 8:].isnan().any() | got[1].isnan().any())


def test_groups_that_are_too_large_do_not_fit() -> None:
    assert fits(196, 4)
    assert fits(1024, 16)
    assert not fits(1025, 16)


# Odd sizes, more than one tile in both directions, and the maps of the paper's network.
POOL_SHAPES = [(5, 13, 13, 16), (3, 5, 5, 32), (2, 7, 6, 3), (4, 2, 2, 1), (1, 9, 40, 5)]


def maps(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return made.to(DEVICE)


def wanted(x: Tensor, stride: int, tanh: bool) -> Tensor:
    outer = x.permute(0, 3, 1, 2)
    return F.max_pool2d(outer.tanh() if tanh else outer.relu(), 2, stride).permute(0, 2, 3, 1)


@pytest.mark.parametrize("shape", POOL_SHAPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tanh", [False, True])
def test_pooling_equals_torch(shape: tuple[int, ...], stride: int, tanh: bool) -> None:
    x = maps(shape, 0)
    x[0, 1, 1, 0], x[-1, 0, 0, 0], x[-1, 1, 1, -1] = float("nan"), float("inf"), -float("inf")
    got, right = pooled(x, stride=stride, tanh=tanh), wanted(x, stride, tanh)
    assert got.shape == right.shape
    assert torch.equal(got.isnan(), right.isnan())
    assert bool(torch.isclose(got, right, atol=5e-7 if tanh else 0, rtol=0, equal_nan=True).all())


@pytest.mark.parametrize("shape", POOL_SHAPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tanh", [False, True])
def test_two_summands_give_the_bits_of_their_sum(shape: tuple[int, ...], stride: int, tanh: bool) -> None:
    inputs, draws = maps((3, *shape[1:]), 1, torch.float64), maps((2, *shape[1:]), 2, torch.float64)
    both = (inputs[:, None] + draws).float().flatten(0, 1).contiguous()
    assert torch.equal(pooled_sums(inputs, draws, stride=stride, tanh=tanh), pooled(both, stride=stride, tanh=tanh))
