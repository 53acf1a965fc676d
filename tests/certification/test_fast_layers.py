"""Faster layers give torch's numbers: dense convolutions, pools by slices, activation and pool in one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification import fast_layers
from twinproof.certification.fast_layers import (
    ActivationPool,
    DenseConvolution,
    SlicedMaxPool,
    can_be_dense,
    is_plain_pool,
    sums,
)
from twinproof.certification.fast_layers import pool_can_be_fused as can_be_fused
from twinproof.compute.devices import matrix_products

CONVOLUTIONS: list[tuple[nn.Conv2d, tuple[int, ...]]] = [
    (nn.Conv2d(1, 16, 8, stride=2, padding=2), (1, 28, 28)),
    (nn.Conv2d(3, 4, 3), (3, 9, 7)),
    (nn.Conv2d(2, 5, (3, 2), stride=(1, 2), padding=(2, 0), bias=False), (2, 6, 8)),
    (nn.Conv2d(4, 3, 3, dilation=2, padding=1), (4, 8, 8)),
    (nn.Conv2d(2, 3, 1), (2, 5, 5)),
]


def inputs(shape: tuple[int, ...]) -> Tensor:
    return torch.randn((6, *shape), generator=torch.Generator().manual_seed(1))


def error(layer: nn.Conv2d, shape: tuple[int, ...], *, channels_last: bool) -> float:
    x = inputs(shape)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        got, wanted = DenseConvolution(layer, shape, tf32=False)(x), layer(x)
    assert got.shape == wanted.shape
    assert got.is_contiguous(memory_format=torch.channels_last)
    return float((got - wanted).abs().max())


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda value: str(value))
@pytest.mark.parametrize("channels_last", [False, True])
def test_equals_the_convolution(layer: nn.Conv2d, shape: tuple[int, ...], channels_last: bool) -> None:
    assert can_be_dense(layer, shape)
    assert error(layer, shape, channels_last=channels_last) < 1e-5


def test_planted_wrong_order_of_the_inputs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fast_layers._band_weight
    monkeypatch.setattr(fast_layers, "_band_weight", lambda *given: right(*given).flip(0))
    assert error(*CONVOLUTIONS[1], channels_last=True) > 1e-2


def test_planted_shared_weight_of_cut_lines_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the border a kernel is cut: its lines' weight is not that of the lines inside."""
    right = fast_layers._bands

    def shifted(layer: nn.Conv2d, lines: int) -> list[fast_layers._Band]:
        first, *others = right(layer, lines)
        return [replace(first, first=first.first + 1), *others]

    assert len(right(*_layer_and_lines())) == 3
    monkeypatch.setattr(fast_layers, "_bands", shifted)
    assert error(*CONVOLUTIONS[0], channels_last=False) > 1e-2


def _layer_and_lines() -> tuple[nn.Conv2d, int]:
    layer, shape = CONVOLUTIONS[0]
    return layer, shape[1]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda value: str(value))
def test_the_bias_can_be_left_to_the_next_layer(layer: nn.Conv2d, shape: tuple[int, ...]) -> None:
    x, pool = inputs(shape), nn.MaxPool2d(2, 1)
    with torch.no_grad():
        left = DenseConvolution(layer, shape, tf32=False, with_bias=False)(x)
        got, wanted = ActivationPool(nn.Tanh(), pool, bias=layer.bias)(left), pool(layer(x).tanh())
    assert float((got - wanted).abs().max()) < 1e-5


def test_a_broken_number_breaks_its_row_and_no_other() -> None:
    layer, shape = CONVOLUTIONS[0]
    x = inputs(shape)
    x[2, 0, 3, 3] = float("nan")
    made = DenseConvolution(layer, shape, tf32=False)(x).flatten(1)
    assert made[2].isnan().any()
    assert made[[0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), (4, 8, 8)),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (4, 8, 8)),
        (nn.Conv2d(4, 4, 3, padding="same"), (4, 8, 8)),
        (nn.Conv2d(4, 4, 3).double(), (4, 8, 8)),
        (nn.Conv2d(3, 4, 3, padding=1), (3, 8, 128)),
        (nn.Conv2d(3, 4, 1, padding=1), (3, 8, 8)),
        (nn.Linear(4, 4), (4,)),
        (nn.ConvTranspose2d(4, 4, 3), (4, 8, 8)),
    ],
    ids=lambda value: str(value),
)
def test_others_are_left_alone(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert not can_be_dense(layer, shape)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_the_precision_of_torch_is_left_as_it_was(before: bool, wanted: bool) -> None:
    found = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = before
        with contextlib.suppress(KeyError), matrix_products(wanted):
            assert torch.backends.cuda.matmul.allow_tf32 == wanted
            raise KeyError
        assert torch.backends.cuda.matmul.allow_tf32 == before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = found


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
def test_others_are_left_alone_fused(activation: nn.Module, pool: nn.Module) -> None:
    """GELU is not monotone: the maximum may not be taken first."""
    assert not can_be_fused(activation, pool)


POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d(3, stride=2),
    nn.MaxPool2d(3, stride=1),
    nn.MaxPool2d((2, 3), stride=(1, 2)),
    nn.MaxPool2d((1, 4), stride=(3, 1)),
    nn.MaxPool2d(1, stride=2),
]


def maps_sliced(height: int, width: int) -> Tensor:
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
    x = maps_sliced(*size).contiguous(memory_format=order)
    assert same(SlicedMaxPool(pool)(x), pool(x))


def test_planted_forgotten_columns_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_only(maximum: Callable[[Tensor, Tensor], Tensor], slices: list[Tensor]) -> Tensor:
        return slices[0] if slices[0].shape[2] == 4 else reduce(maximum, slices)

    monkeypatch.setattr(fast_layers, "reduce", rows_only)
    x = maps_sliced(5, 5)
    assert not same(SlicedMaxPool(nn.MaxPool2d(2, stride=1))(x), F.max_pool2d(x, 2, 1))


def test_planted_loss_of_nan_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "maximum", torch.fmax)
    x = maps_sliced(5, 5)
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
