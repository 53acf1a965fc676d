"""The verifier's own bounds confirm the library's radii, and refuse longer ones, other answers and other weights."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from interval_oracles import LEVELS, stored_inputs
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from twinproof.certification.interval import STEPS, IntervalNetwork
from twinproof.certification.interval_layers import UNIT32, Box, Ramp
from twinproof.layers.interval import Contrast
from twinproof_verify.evidence import Tensors, raw_tensors
from twinproof_verify.interval import BOUNDED, RELU, Network, contrast, network_of
from twinproof_verify.layers import First, LayerError

IMAGE = (1, 28, 28)


def tensors_of(network: nn.Module) -> Tensors:
    found = raw_tensors(save(network.state_dict()))
    assert not isinstance(found, str)
    return found


def verifiers(network: nn.Sequential, shape: tuple[int, ...]) -> Network:
    """The verifier's network, described layer by layer as its table does."""
    parts: list[First | str] = []
    for name, module in network.named_children():
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            padding = module.padding if isinstance(module.padding, str) else tuple(module.padding)
            parts.append(First(name, tuple(module.stride), padding, tuple(module.dilation), module.groups))
        elif not isinstance(module, nn.Flatten):
            parts.append(First(name) if isinstance(module, nn.Linear) else RELU)
    return network_of(parts, tensors_of(network), shape, LEVELS)


def flat(stored: Tensor) -> NDArray[np.int64]:
    return np.asarray(stored.flatten(1).numpy())


def begun_for_bounds(network: nn.Sequential, seed: int) -> nn.Sequential:
    """Weights as training with interval bounds begins with, and biases, so that radii are neither 0 nor all alike."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
                layer.weight.normal_(0, math.sqrt(2 * math.pi) / layer.weight[0].numel())
                assert layer.bias is not None
                layer.bias.normal_(0, 0.1)
    return network


def _random(seed: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    stride, padding, dilation, groups = (int(rng.integers(low, high)) for low, high in ((1, 3), (0, 3), (1, 3), (1, 3)))
    kinds: list[tuple[list[nn.Module], tuple[int, ...]]] = [
        ([nn.Flatten()], (11,)),
        (
            [
                nn.Conv2d(2, 4, (2, 3), stride, padding, dilation, groups),
                nn.ReLU(),
                nn.Conv2d(4, 2, 2),
                nn.ReLU(),
                nn.Flatten(),
            ],
            (2, 7, 8),
        ),
        ([nn.Conv1d(2, 4, 3, stride, padding, dilation, groups), nn.ReLU(), nn.Flatten()], (2, 9)),
        ([nn.Conv2d(1, 3, 4, padding="same"), nn.ReLU(), nn.Flatten()], (1, 5, 5)),
    ]
    layers, shape = kinds[seed % 4]
    units = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    return begun_for_bounds(nn.Sequential(*layers, nn.Linear(units, 6), nn.ReLU(), nn.Linear(6, 4)), seed), shape


def _named(name: str) -> nn.Sequential:
    """The networks of the verifier's table for images of 28x28."""
    if name == "relu-mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    first: list[nn.Module] = [Contrast()] if name == "contrast-cnn" else []
    convolutions = [*first, nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10))


def _certified(network: nn.Sequential, shape: tuple[int, ...], stored: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    bounds = IntervalNetwork.of(network, shape)
    answers = bounds.answers(stored, LEVELS)
    return answers.numpy(), bounds.radii(stored, LEVELS, answers).numpy() / STEPS


def test_the_verifier_confirms_radii_and_refuses_longer_ones() -> None:
    """Every honest radius holds at its own size; one raised by 1 %, and by 16 steps, does not, but for a few that had room."""
    certificates = held_longer = 0
    for seed in range(200):
        network, shape = _random(seed)
        stored = stored_inputs(seed, shape, 20)
        answers, radii = _certified(network, shape, stored)
        verifier, kept = verifiers(network, shape), (radii > 0) & (radii < 1)
        mine, found = flat(stored)[kept], radii[kept]
        assert verifier.holds(mine, answers[kept], found).all()
        certificates += len(found)
        held_longer += int(verifier.holds(mine, answers[kept], found * 1.01 + 16 / STEPS).sum())
        others = (answers[kept] + 1) % verifier.classes
        assert not verifier.holds(mine, others, np.zeros(len(mine))).any()
        assert verifier.excludes(mine, others).mean() > 0.5 or not len(mine)
        assert not verifier.excludes(flat(stored), answers).any()
    assert certificates > 2_000
    assert held_longer == 0


@pytest.mark.parametrize("name", BOUNDED)
def test_networks_of_the_table(name: str) -> None:
    network = begun_for_bounds(_named(name), 0)
    stored = stored_inputs(0, IMAGE, 60)
    answers, radii = _certified(network, IMAGE, stored)
    verifier = network_of(BOUNDED[name], tensors_of(network), IMAGE, LEVELS)
    assert (radii > 0).mean() > 0.9
    assert verifier.holds(flat(stored), answers, radii)[radii > 0].all()
    assert not verifier.holds(flat(stored), answers, radii * 1.01 + 2 / STEPS).any()


def test_other_weights_are_refused() -> None:
    network, shape = _random(1)
    stored = stored_inputs(1, shape, 40)
    answers, radii = _certified(network, shape, stored)
    with torch.no_grad():
        network[0].weight.mul_(1.05)  # type: ignore[operator]
    assert not verifiers(network, shape).holds(flat(stored), answers, radii).all()


def test_another_number_of_levels_is_refused() -> None:
    network, shape = _random(2)
    stored = stored_inputs(2, shape, 40)
    answers, radii = _certified(network, shape, stored)
    other = replace(verifiers(network, shape), levels=LEVELS + 30)
    assert not other.holds(flat(stored), answers, radii).all()


@pytest.mark.parametrize("name", ["5.weight", "7.bias", "0.weight"])
def test_weights_that_do_not_fit_are_an_error(name: str) -> None:
    tensors = tensors_of(_named("interval-cnn"))
    with pytest.raises(LayerError):
        network_of(BOUNDED["interval-cnn"], {key: value for key, value in tensors.items() if key != name}, IMAGE, LEVELS)
    with pytest.raises(LayerError):
        network_of(BOUNDED["interval-cnn"], tensors, (1, 40, 40), LEVELS)


def _ramp(rounding: float) -> float:
    """The share of inputs whose output in float32 leaves the library's interval or the verifier's."""
    inputs = torch.rand(200_000, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    made = Contrast()(inputs).double()
    exact = inputs.double()
    box = Ramp(lambda x: (x - 0.5) * 16 + 0.5).bound(Box(exact, exact))
    low, high = (torch.from_numpy(end) for end in contrast(exact.numpy(), exact.numpy()))
    slack = UNIT32 - rounding
    left = [
        (made < one + slack * (one > 0)) | (made > other - slack * (other < 1))
        for one, other in ((box.low, box.high), (low, high))
    ]
    return float((left[0] | left[1]).double().mean())


def test_the_ramp_holds_what_float32_makes_of_it() -> None:
    assert _ramp(UNIT32) == 0
    assert _ramp(0.0) > 0.01  # planted: without its one rounding
    ends = Ramp(lambda x: (x - 0.5) * 16 + 0.5).bound(Box(torch.tensor([0.0, 0.4]), torch.tensor([0.46, 1.0])))
    assert ends.low.tolist() == [0, 0]
    assert ends.high.tolist() == [0, 1]
