"""Relevance by hand, its conservation through every layer of the house networks, and rules that would lose or invent some."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers import relevance as module
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import NoiseForm, RedistributionKind, with_noise
from twinproof.layers.relevance import relevance

SHAPES = {"mlp": (5,), "small-cnn": (1, 6, 6), "tramer-boneh-cnn": (1, 20, 20), "gelu-cnn": (2, 9, 9)}
TINY = 1e-12


def _network(name: str, *, biases: bool) -> nn.Module:
    torch.manual_seed(3)
    network = build_network(name, SHAPES[name], 4).double().eval()
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None and not biases:
                layer.bias.zero_()
    return network


def _records(name: str, count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    inputs = torch.rand((count, *SHAPES[name]), generator=generator, dtype=torch.float64)
    return inputs, torch.arange(count) % 4


def _lost(name: str, stabiliser: float = TINY) -> float:
    """By how much the relevances of a network without biases miss the label's score, over it, at worst."""
    network, (inputs, labels) = _network(name, biases=False), _records(name)
    with torch.no_grad():
        scores = network(inputs)[torch.arange(len(labels)), labels]
        found = relevance(network, inputs, labels, stabiliser=stabiliser).flatten(1).sum(dim=1)
    return float(((found - scores) / scores).abs().max())


@pytest.mark.parametrize("name", list(SHAPES))
def test_relevance_is_conserved_through_every_house_network(name: str) -> None:
    assert _lost(name) < 1e-6


def _transposed(layer: nn.Module, inputs: Tensor, errors: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = inputs.detach().requires_grad_()
        (found,) = torch.autograd.grad(layer(leaf), leaf, errors)
    return found


def _without_denominator(layer: nn.Module, inputs: Tensor, share: Tensor, stabiliser: float) -> Tensor:
    return inputs * _transposed(layer, inputs, share)


def _weights_for_parts(layer: nn.Module, inputs: Tensor, share: Tensor, stabiliser: float) -> Tensor:
    return _transposed(layer, inputs, share / layer(inputs))


def _equal_maximum(layer: nn.Module, inputs: Tensor, share: Tensor, stabiliser: float) -> Tensor:
    """Every input that won somewhere gets the mean share, however often it won."""
    return (_transposed(layer, inputs, torch.ones_like(share)) > 0) * share.mean()


PLANTED: list[tuple[type[nn.Module], str, Callable[..., Tensor]]] = [
    (nn.Linear, "mlp", _without_denominator),
    (nn.Linear, "small-cnn", _weights_for_parts),
    (nn.Conv2d, "small-cnn", _without_denominator),
    (nn.MaxPool2d, "tramer-boneh-cnn", _equal_maximum),
]


@pytest.mark.parametrize(("layer", "name", "bug"), PLANTED)
def test_a_planted_rule_that_loses_or_invents_relevance_is_caught(
    monkeypatch: pytest.MonkeyPatch, layer: type[nn.Module], name: str, bug: Callable[..., Tensor]
) -> None:
    monkeypatch.setitem(module._RULES, layer, bug)
    assert _lost(name) > 0.01


def test_the_stabiliser_keeps_something_back_and_never_gives_more() -> None:
    """For one linear layer: each output hands on |z| / (|z| + e) of what it has."""
    layer = nn.Sequential(nn.Linear(5, 4, bias=False)).double()
    inputs, labels = _records("mlp")
    scores = layer(inputs).detach()[torch.arange(len(labels)), labels]
    found = relevance(layer, inputs, labels, stabiliser=0.3).detach().sum(dim=1)
    assert torch.allclose(found, scores * scores.abs() / (scores.abs() + 0.3))


def test_relevance_of_a_small_network_is_the_one_written_by_hand() -> None:
    """Loops over single numbers, biases included: R_j = sum_k a_j w_kj R_k / (z_k + e sign z_k), twice."""
    network = _network("mlp", biases=True)
    inputs, labels = _records("mlp")
    found = relevance(network, inputs, labels, stabiliser=0.05).detach().numpy()
    numbers = [value.detach().numpy() for value in network.parameters()]

    def handed_back(parts: list[float], weights: list[list[float]], biases: list[float], has: list[float]) -> list[float]:
        got = [0.0] * len(parts)
        for row, bias, own in zip(weights, biases, has, strict=True):
            total = sum(weight * part for weight, part in zip(row, parts, strict=True)) + bias
            for place, (weight, part) in enumerate(zip(row, parts, strict=True)):
                got[place] += weight * part * own / (total + (0.05 if total >= 0 else -0.05))
        return got

    for row, label, answer in zip(inputs.numpy(), labels.tolist(), found, strict=True):
        w1, b1, w2, b2 = numbers
        hidden = np.tanh(w1 @ row + b1)
        scores = w2 @ hidden + b2
        start = [float(score) if place == label else 0.0 for place, score in enumerate(scores)]
        middle = handed_back(hidden.tolist(), w2.tolist(), b2.tolist(), start)
        assert np.allclose(answer, handed_back(row.tolist(), w1.tolist(), b1.tolist(), middle), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_row_depends_on_its_own_record_alone_and_alone_it_is_the_same(name: str) -> None:
    network, (inputs, labels) = _network(name, biases=True), _records(name)
    with torch.no_grad():
        whole = relevance(network, inputs, labels)
        others = inputs.clone()
        others[1:] = 1 - others[1:]
        changed = relevance(network, others, (labels + (torch.arange(len(labels)) > 0)) % 4)
        single = torch.func.vmap(lambda one, label: relevance(network, one[None], label[None])[0])(inputs, labels)
    assert torch.equal(whole[0], changed[0])
    assert not torch.equal(whole[1], changed[1])
    assert torch.allclose(whole, single, rtol=1e-8, atol=1e-14)


def test_no_noise_is_drawn() -> None:
    form = NoiseForm(Place.FIRST_LAYER, Law.LAPLACE, RedistributionKind.UNIFORM, 0.1, 0.5)
    plain = _network("mlp", biases=True)
    noisy = with_noise(plain, SHAPES["mlp"], form, 5.0).eval()
    inputs, labels = _records("mlp")
    state = torch.random.get_rng_state()
    assert torch.equal(relevance(noisy, inputs, labels), relevance(plain, inputs, labels))
    assert torch.equal(state, torch.random.get_rng_state())


class _Doubled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    "network",
    [build_network("resnet-18", (1, 8, 8), 4), nn.Sequential(_Doubled(5, 4)), nn.Sequential(nn.Flatten(0), nn.Linear(5, 4))],
    ids=["residual", "subclass", "rows flattened"],
)
def test_what_has_no_rule_is_refused(network: nn.Module) -> None:
    with pytest.raises(ModelError, match=r"relevance cannot be handed back(.|\n)*Linear(.|\n)*redistribution uniform"):
        relevance(network, torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64))
