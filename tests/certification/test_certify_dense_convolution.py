"""A convolution as one matrix product gives the convolution's answer, and leaves torch's settings alone."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification import fast_layers as dense_convolution
from twinproof.certification.fast_layers import ActivationPool, DenseConvolution, can_be_dense
from twinproof.compute.devices import arithmetic_of, matrix_products

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
    right = dense_convolution._band_weight
    monkeypatch.setattr(dense_convolution, "_band_weight", lambda *given: right(*given).flip(0))
    assert error(*CONVOLUTIONS[1], channels_last=True) > 1e-2


def test_planted_shared_weight_of_cut_lines_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the border a kernel is cut: its lines' weight is not that of the lines inside."""
    right = dense_convolution._bands

    def shifted(layer: nn.Conv2d, lines: int) -> list[dense_convolution._Band]:
        first, *others = right(layer, lines)
        return [replace(first, first=first.first + 1), *others]

    assert len(right(*_layer_and_lines())) == 3
    monkeypatch.setattr(dense_convolution, "_bands", shifted)
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


def test_the_arithmetic_is_named() -> None:
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten())
    assert arithmetic_of(network, torch.device("cpu")) == "float32"
    assert torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert arithmetic_of(network, torch.device("cuda")) == "tf32"
    assert arithmetic_of(nn.Linear(2, 2), torch.device("cuda")) == "float32"
