"""The Triton kernels against torch: on a GPU, or on a CPU where Triton interprets them (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)

from twinproof.certification.layer_kernels import pooled, pooled_sums  # noqa: E402

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# Odd sizes, more than one tile in both directions, and the maps of the paper's network.
SHAPES = [(5, 13, 13, 16), (3, 5, 5, 32), (2, 7, 6, 3), (4, 2, 2, 1), (1, 9, 40, 5)]


def maps(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return made.to(DEVICE)


def wanted(x: Tensor, stride: int, tanh: bool) -> Tensor:
    outer = x.permute(0, 3, 1, 2)
    return F.max_pool2d(outer.tanh() if tanh else outer.relu(), 2, stride).permute(0, 2, 3, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tanh", [False, True])
def test_equals_torch(shape: tuple[int, ...], stride: int, tanh: bool) -> None:
    x = maps(shape, 0)
    x[0, 1, 1, 0], x[-1, 0, 0, 0], x[-1, 1, 1, -1] = float("nan"), float("inf"), -float("inf")
    got, right = pooled(x, stride=stride, tanh=tanh), wanted(x, stride, tanh)
    assert got.shape == right.shape
    assert torch.equal(got.isnan(), right.isnan())
    assert bool(torch.isclose(got, right, atol=5e-7 if tanh else 0, rtol=0, equal_nan=True).all())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tanh", [False, True])
def test_two_summands_give_the_bits_of_their_sum(shape: tuple[int, ...], stride: int, tanh: bool) -> None:
    inputs, draws = maps((3, *shape[1:]), 1, torch.float64), maps((2, *shape[1:]), 2, torch.float64)
    both = (inputs[:, None] + draws).float().flatten(0, 1).contiguous()
    assert torch.equal(pooled_sums(inputs, draws, stride=stride, tanh=tanh), pooled(both, stride=stride, tanh=tanh))
