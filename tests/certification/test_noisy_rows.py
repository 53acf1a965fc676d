"""Rows of input plus noise: each the one of its number, wherever a batch begins, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.certification.grid_noise import GridNoise, input_noise, layer_noise
from twinproof.certification.votes import NoisyRows
from twinproof.keys import Key
from twinproof.layers.noise import Law

KEY, INDICES = Key.from_seed(12), [4, 9, 2]
CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")
# Sums of several grids, dimensions that fill blocks and others, on coarse and on fine levels.
CASES = [(0.5, 255, 784), (0.25, 255, 21), (0.5, 16, 3), (1.0, 65535, 30), (0.01, 255, 100)]


def _stored(levels: int, dimension: int, device: torch.device = CPU) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, levels + 1, (len(INDICES), dimension), generator=generator).to(device, torch.float32)


def _source(sigma: float, levels: int, dimension: int, device: torch.device = CPU) -> NoisyRows:
    stored = _stored(levels, dimension, device)
    return NoisyRows(input_noise(sigma, levels), KEY, "estimate", INDICES, stored, draws=70, after=20)


def _row(sigma: float, levels: int, dimension: int, number: int) -> NDArray[np.float32]:
    """By the definition, one draw alone: float64 holds the sum exactly and the quotient is rounded once."""
    owner, place = divmod(number, 50)
    noise = input_noise(sigma, levels).draws(KEY, "estimate", INDICES[owner], 20 + place, 1, dimension, CPU)[0]
    total = np.asarray(noise, dtype=np.float64) + np.asarray(_stored(levels, dimension)[owner], dtype=np.float64)
    return (total.astype(np.float32) / np.float32(levels)).astype(np.float32)


def _filled(source: NoisyRows, first: int, count: int) -> NDArray[np.float32]:
    out = torch.full((count, source.dimension), torch.nan, device=source.stored.device)
    source.fill(first, out)
    return np.asarray(out.cpu())


@pytest.mark.parametrize(("sigma", "levels", "dimension"), CASES)
@pytest.mark.parametrize(("first", "count"), [(0, 150), (0, 1), (49, 2), (149, 1), (37, 100)])
def test_rows_are_those_of_their_numbers(sigma: float, levels: int, dimension: int, first: int, count: int) -> None:
    source = _source(sigma, levels, dimension)
    assert len(source) == 150
    wanted = np.stack([_row(sigma, levels, dimension, number) for number in range(first, first + count)])
    assert (_filled(source, first, count) == wanted).all()
    assert source.owners(first, count).tolist() == [number // 50 for number in range(first, first + count)]


@CUDA
@pytest.mark.parametrize(("sigma", "levels", "dimension"), CASES)
def test_a_gpu_makes_the_same_bits(sigma: float, levels: int, dimension: int) -> None:
    wanted, source = _source(sigma, levels, dimension), _source(sigma, levels, dimension, torch.device("cuda"))
    for first, count in ((0, 150), (37, 100), (149, 1)):
        assert (_filled(source, first, count) == _filled(wanted, first, count)).all()
    assert source.owners(37, 100).tolist() == wanted.owners(37, 100).tolist()


@CUDA
def test_a_gpu_makes_the_same_bits_far_out_and_with_ties() -> None:
    """Many rows of a fine grid, where first halves tie thousands of times, from a draw beyond 32 bits of words."""
    noise, first = input_noise(4.0, 65535), 2**31
    rows = [
        NoisyRows(noise, KEY, "estimate", [1], torch.zeros(1, 64, device=device), draws=first + 30_000, after=first)
        for device in ("cpu", "cuda")
    ]
    assert (_filled(rows[0], 0, 30_000) == _filled(rows[1], 0, 30_000)).all()


@CUDA
def test_a_gpu_without_triton_makes_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinproof.certification.votes.kernels_run", lambda device: False)
    source = _source(0.5, 255, 784, torch.device("cuda"))
    assert (_filled(source, 37, 100) == _filled(_source(0.5, 255, 784), 37, 100)).all()


# Noise of other laws and places, whose tables are far larger.
OTHERS = [
    input_noise(0.25, 255, Law.LAPLACE),
    layer_noise(0.3, Law.GAUSSIAN, 784, 3.0),
    layer_noise(0.3, Law.LAPLACE, 784, 3.0),
]


def _other(noise: GridNoise, device: torch.device = CPU) -> NoisyRows:
    """Rows of points on the noise's own grid."""
    whole = int(min(noise.largest / noise.grid - 1, 2**20))
    points = torch.randint(-whole, whole + 1, (3, 21), generator=torch.Generator().manual_seed(4)).float() * noise.grid
    return NoisyRows(noise, KEY, "estimate", INDICES, points.to(device), draws=70, after=20)


@pytest.mark.parametrize("noise", OTHERS, ids=lambda noise: f"{noise.law} {noise.levels}")
def test_rows_of_other_noise_are_exact_sums(noise: GridNoise) -> None:
    source = _other(noise)
    drawn = torch.cat([noise.draws(KEY, "estimate", index, 20, 50, 21, CPU) for index in INDICES]).double().numpy()
    sums = source.stored.double().repeat_interleave(50, dim=0).numpy() + drawn
    assert (_filled(source, 0, 150) == sums.astype(np.float32) / np.float32(noise.levels)).all()
    assert (sums.astype(np.float32) == sums).all(), "nothing is rounded"


@CUDA
@pytest.mark.parametrize("noise", OTHERS, ids=lambda noise: f"{noise.law} {noise.levels}")
def test_a_gpu_makes_the_same_bits_of_other_noise(noise: GridNoise) -> None:
    assert (_filled(_other(noise, torch.device("cuda")), 37, 100) == _filled(_other(noise), 37, 100)).all()


def test_planted_quotient_by_a_reciprocal_is_caught() -> None:
    """Multiplying by 1/255 is another function; the two devices must not take different ones."""
    levels = np.arange(0, 256, dtype=np.float32)
    assert (levels / np.float32(255) != levels * np.float32(1 / 255)).any()


class _Fake:
    """Stands for a tensor on a GPU as far as choosing the kernel goes."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.device = tensor, torch.device("cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def test_without_triton_a_gpu_gets_rows_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinproof.certification.votes.kernels_run", lambda device: False)
    stand_in: Any = _Fake(_stored(255, 21))
    source = NoisyRows(input_noise(0.25, 255), KEY, "estimate", INDICES, stand_in, draws=70, after=20)
    assert source.fill == source._fill_through_host
    assert (_filled(source, 37, 100) == _filled(_source(0.25, 255, 21), 37, 100)).all()
