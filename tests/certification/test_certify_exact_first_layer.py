"""The exact first layer: W x + W n is W (x + n) to the bit, with weights that hardly moved; float sums are not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification import shared_noise as exact_first_layer
from twinproof.certification.grid_noise import GridNoise, input_noise
from twinproof.certification.shared_noise import ExactFirstLayer
from twinproof.errors import ModelError

Layer = nn.Conv2d | nn.Linear
NOISES = [input_noise(0.5, 255), input_noise(0.05, 16), input_noise(1.0, 65535), input_noise(2.0, 255)]


def generated(seed: int) -> tuple[Layer, tuple[int, ...]]:
    """A layer with random sizes and weights of very different sizes, and the shape of its input."""
    torch.manual_seed(seed)

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), ()))]

    bias = bool(pick(0, 1))
    if seed % 4 == 0:
        layer: Layer = nn.Linear(pick(1, 7, 300), pick(1, 5), bias=bias)
        shape: tuple[int, ...] = (layer.weight.shape[1],)
    else:
        groups = pick(1, 1, 2)
        channels, out = groups * pick(1, 2), groups * pick(1, 3)
        layer = nn.Conv2d(
            channels,
            out,
            (pick(1, 2, 3), pick(1, 3, 5)),
            stride=(pick(1, 2), pick(1, 3)),
            padding=(pick(0, 2), pick(0, 1)),
            dilation=(pick(1, 2), 1),
            groups=groups,
            bias=bias,
        )
        shape = (channels, pick(6, 9), pick(5, 8))
    with torch.no_grad():
        layer.weight.mul_(10 ** torch.empty_like(layer.weight).uniform_(-6, 1))
    return layer, shape


def inputs_and_noise(shape: tuple[int, ...], noise: GridNoise) -> tuple[Tensor, Tensor]:
    """Random stored inputs and noise on the grid, and the most extreme ones there are."""
    inputs = torch.randint(0, noise.levels + 1, (6, *shape)).float()
    steps = torch.randint(-noise.table.reach, noise.table.reach + 1, (6, *shape)).float()
    inputs[4], inputs[5] = noise.levels, 0
    steps[4], steps[5] = noise.table.reach, -noise.table.reach
    return inputs, steps * noise.grid


def is_linear(layer: ExactFirstLayer, inputs: Tensor, noise: Tensor) -> bool:
    return torch.equal(layer.of_inputs(inputs) + layer.of_noise(noise), layer.of_inputs(inputs + noise))


def plain(layer: Layer, x: Tensor) -> Tensor:
    """The layer as torch computes it, in the precision of its weights."""
    if isinstance(layer, nn.Linear):
        return F.linear(x, layer.weight, layer.bias)
    made: Tensor = layer(x)
    return made


@pytest.mark.parametrize("seed", range(24))
def test_the_sum_of_both_parts_is_the_whole_to_the_bit(seed: int) -> None:
    layer, shape = generated(seed)
    noise = NOISES[seed % len(NOISES)]
    exact = ExactFirstLayer(layer, shape, noise, "0")
    assert is_linear(exact, *inputs_and_noise(shape, noise))
    assert exact.moved_bits >= 25


def test_planted_float_sums_of_the_layer_as_it_is_are_caught() -> None:
    """What everybody would write: the layer of the inputs plus the layer of the noise."""
    differ = 0
    for seed in range(24):
        layer, shape = generated(seed)
        inputs, noise = inputs_and_noise(shape, NOISES[seed % len(NOISES)])
        with torch.no_grad():
            apart = plain(layer, inputs) + plain(layer, noise) - plain(layer, torch.zeros_like(inputs))
            differ += not torch.equal(apart, plain(layer, inputs + noise))
    assert differ > 12


def test_planted_weights_that_were_not_rounded_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 alone does not make the sums exact."""
    monkeypatch.setattr(
        exact_first_layer, "_rounded", lambda weight, bias, most, where: (torch.cat((weight, bias[:, None]), dim=1), 1.0)
    )
    caught = 0
    for seed in range(24):
        layer, shape = generated(seed)
        noise = NOISES[seed % len(NOISES)]
        caught += not is_linear(ExactFirstLayer(layer, shape, noise, "0"), *inputs_and_noise(shape, noise))
    assert caught > 12


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_layer_up_to_rounding(seed: int) -> None:
    layer, shape = generated(seed)
    noise = NOISES[seed % len(NOISES)]
    inputs, _ = inputs_and_noise(shape, noise)
    exact, double = ExactFirstLayer(layer, shape, noise, "0").of_inputs(inputs), layer.double()
    with torch.no_grad():
        wanted = plain(double, inputs.double() / noise.levels)
    assert exact.shape == wanted.shape
    assert float((exact - wanted).abs().max()) <= 1e-7 * float(wanted.abs().max())


def test_maps_come_with_channels_innermost() -> None:
    made = ExactFirstLayer(nn.Conv2d(2, 3, 2), (2, 5, 5), NOISES[0], "0").of_noise(torch.ones(4, 2, 5, 5))
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_dyadic_weights_are_not_moved_at_all() -> None:
    dyadic = nn.Linear(2, 2)
    with torch.no_grad():
        dyadic.weight.copy_(torch.tensor([[0.5, 1.0], [-0.25, 2.0]]))
    assert ExactFirstLayer(dyadic, (2,), input_noise(0.5, 16), "0").moved_bits == math.inf


@pytest.mark.parametrize("sign", [1, -1])
def test_noise_beyond_the_bound_of_the_proof_is_refused(sign: int) -> None:
    noise = NOISES[0]
    layer = ExactFirstLayer(nn.Linear(2, 2), (2,), noise, "0")
    most = noise.table.reach * noise.grid
    layer.of_noise(torch.full((1, 2), sign * most))
    with pytest.raises(ModelError, match="larger than the exact first layer"):
        layer.of_noise(torch.full((1, 2), sign * (most + 1)))
    with pytest.raises(ModelError, match="larger than the exact first layer"):
        layer.of_inputs(torch.full((1, 2), float("nan")))


def test_weights_that_would_move_too_far_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2^28 instead of 2^53 there is no room left for the weights of a wide layer."""
    torch.manual_seed(0)
    monkeypatch.setattr(exact_first_layer, "_EXACT", 2**28)
    with pytest.raises(ModelError, match="without changing its weights too much"):
        ExactFirstLayer(nn.Linear(784, 4), (784,), NOISES[0], "first.layer")


@pytest.mark.parametrize("layer", [nn.Conv2d(1, 1, 3, padding="same"), nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")])
def test_unknown_padding_is_refused(layer: nn.Conv2d) -> None:
    with pytest.raises(ModelError, match="does not know this padding"):
        ExactFirstLayer(layer, (1, 8, 8), NOISES[0], "0")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_weights_are_refused(value: float) -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight[0, 0] = value
    with pytest.raises(ModelError, match="not a finite number"):
        ExactFirstLayer(layer, (2,), NOISES[0], "0")
