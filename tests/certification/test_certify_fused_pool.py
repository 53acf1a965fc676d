"""Activation and pool in one: what torch's two layers give, with the maximum taken first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification.fast_layers import ActivationPool, sums
from twinproof.certification.fast_layers import pool_can_be_fused as can_be_fused

CASES = [(activation, stride) for activation in (nn.Tanh(), nn.ReLU()) for stride in (1, 2)]


def maps(rows: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = 3 * torch.randn((rows, 4, 7, 6), generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return made.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("activation", "stride"), CASES, ids=str)
def test_equals_the_two_layers(activation: nn.Module, stride: int) -> None:
    pool = nn.MaxPool2d(2, stride)
    assert can_be_fused(activation, pool)
    x = maps(5, 0)
    x[1, 2, 3, 3] = float("nan")
    got, wanted = ActivationPool(activation, pool)(x), pool(activation(x))
    assert torch.equal(got.isnan(), wanted.isnan())
    assert float((got - wanted).nan_to_num().abs().max()) < 1e-6


@pytest.mark.parametrize(("activation", "stride"), CASES, ids=str)
def test_reads_two_summands(activation: nn.Module, stride: int) -> None:
    inputs, draws = maps(2, 1, torch.float64), maps(3, 2, torch.float64)
    fused = ActivationPool(activation, nn.MaxPool2d(2, stride))
    both = torch.stack([inputs[i] + draws[j] for i in range(2) for j in range(3)]).float()
    assert torch.equal(sums(inputs, draws), both)
    assert torch.equal(fused.of_sums(inputs, draws), fused(both))


def test_summands_of_vectors() -> None:
    inputs, draws = torch.tensor([[1.0], [10.0]]).double(), torch.tensor([[0.25], [0.5], [0.75]]).double()
    assert sums(inputs, draws).flatten().tolist() == [1.25, 1.5, 1.75, 10.25, 10.5, 10.75]


@pytest.mark.parametrize(
    ("activation", "pool"),
    [
        (nn.GELU(), nn.MaxPool2d(2)),
        (nn.Tanh(), nn.MaxPool2d(3)),
        (nn.Tanh(), nn.MaxPool2d(2, padding=1)),
        (nn.Tanh(), nn.AvgPool2d(2)),
        (nn.MaxPool2d(2), nn.Tanh()),
    ],
    ids=str,
)
def test_others_are_left_alone(activation: nn.Module, pool: nn.Module) -> None:
    """GELU is not monotone: the maximum may not be taken first."""
    assert not can_be_fused(activation, pool)
