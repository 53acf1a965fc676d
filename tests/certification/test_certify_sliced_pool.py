"""Max-pooling by slices is torch's max-pooling to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification import fast_layers as sliced_pool
from twinproof.certification.fast_layers import SlicedMaxPool, is_plain_pool

POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d(3, stride=2),
    nn.MaxPool2d(3, stride=1),
    nn.MaxPool2d((2, 3), stride=(1, 2)),
    nn.MaxPool2d((1, 4), stride=(3, 1)),
    nn.MaxPool2d(1, stride=2),
]


def maps(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 100 + width)
    made = torch.randn((3, 5, height, width), generator=generator)
    made[0, 1, 2, 3], made[1, 0, 0, 0], made[2, 4, 1, 1] = float("nan"), float("inf"), -float("inf")
    return made


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("size", [(5, 5), (13, 8), (6, 11)])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_equals_torch_to_the_bit(pool: nn.MaxPool2d, size: tuple[int, int], order: torch.memory_format) -> None:
    assert is_plain_pool(pool)
    x = maps(*size).contiguous(memory_format=order)
    assert same(SlicedMaxPool(pool)(x), pool(x))


def test_planted_forgotten_columns_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_only(maximum: Callable[[Tensor, Tensor], Tensor], slices: list[Tensor]) -> Tensor:
        return slices[0] if slices[0].shape[2] == 4 else reduce(maximum, slices)

    monkeypatch.setattr(sliced_pool, "reduce", rows_only)
    x = maps(5, 5)
    assert not same(SlicedMaxPool(nn.MaxPool2d(2, stride=1))(x), F.max_pool2d(x, 2, 1))


def test_planted_loss_of_nan_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "maximum", torch.fmax)
    x = maps(5, 5)
    assert not same(SlicedMaxPool(nn.MaxPool2d(2, stride=1))(x), F.max_pool2d(x, 2, 1))


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(7),
        nn.AvgPool2d(2),
        type("Own", (nn.MaxPool2d,), {})(2),
    ],
    ids=str,
)
def test_unusual_pools_are_left_alone(layer: nn.Module) -> None:
    assert not is_plain_pool(layer)
