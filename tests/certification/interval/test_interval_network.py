"""Which networks have interval bounds, what is refused, and that bounds see each input alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from interval_oracles import LEVELS, random_network, stored_inputs
from torch import Tensor, nn

from twinproof.certification.interval import STEPS, UNDECIDED, IntervalNetwork
from twinproof.certification.interval_layers import Box
from twinproof.errors import ModelError


def small_cnn() -> nn.Sequential:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 4, 5, 2, 2), nn.ReLU(), nn.Conv2d(4, 8, 4, 2, 1), nn.ReLU())
    network = nn.Sequential(features, nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return network


def _inputs(count: int = 300) -> Tensor:
    return torch.as_tensor(np.random.default_rng(0).integers(0, LEVELS + 1, size=(count, 1, 8, 8)))


def test_answers_are_those_of_the_network() -> None:
    network, stored = small_cnn(), _inputs()
    found = IntervalNetwork.of(network, (1, 8, 8)).answers(stored, LEVELS)
    assert torch.equal(found, network(stored.float() / LEVELS).argmax(1))
    assert len(set(found.tolist())) > 1


def test_windows_are_those_of_torch() -> None:
    """A box of one point is what the network answers in float64, for every kind of convolution and pooling."""
    for seed in range(120):
        network, shape = random_network(seed)
        stored = stored_inputs(seed, shape, 3)
        point = stored.double() / LEVELS
        *_, last = IntervalNetwork.of(network, shape).boxes(Box(point, point))
        with torch.no_grad():
            scores = network.double()(point)
        assert (last.low <= scores).all()
        assert (scores <= last.high).all()
        assert (last.high - last.low < 1e-2 * (1 + scores.abs().amax())).all()


def test_every_radius_was_checked_itself_and_the_next_one_fails() -> None:
    network, stored = small_cnn(), _inputs(100)
    bounds = IntervalNetwork.of(network, (1, 8, 8))
    answers = bounds.answers(stored, LEVELS)
    steps = bounds.radii(stored, LEVELS, answers)
    assert (steps > 0).all()
    assert (bounds._bisected(stored, LEVELS, answers) == steps).all()
    other = bounds.radii(stored, LEVELS, (answers + 1) % 4)
    assert (other == UNDECIDED).all(), "only the network's own answer can be certified"


def test_an_input_has_the_same_radius_alone() -> None:
    network, stored = small_cnn(), _inputs(40)
    bounds = IntervalNetwork.of(network, (1, 8, 8))
    answers = bounds.answers(stored, LEVELS)
    together = bounds.radii(stored, LEVELS, answers)
    alone = torch.cat([bounds.radii(stored[at : at + 1], LEVELS, answers[at : at + 1]) for at in range(40)])
    assert (together - alone).abs().max() <= 1, "sums of float64 may be taken in another order"
    stored[1:] = stored[1:].flip(0)
    assert bounds.radii(stored, LEVELS, answers)[0] == together[0]


def test_what_overflows_is_undecided() -> None:
    last = nn.Linear(2, 2)
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), last)
    with torch.no_grad():
        for value in network.parameters():
            value.fill_(1e20)
        last.weight[1] = 0
        last.bias.copy_(torch.tensor([1.0, 0.0]))
    bounds, stored = IntervalNetwork.of(network, (2,)), torch.full((1, 2), 100)
    assert not network(stored.float() / LEVELS).isfinite().all()
    assert bounds.radii(stored, LEVELS, torch.tensor([0])).tolist() == [UNDECIDED]


def test_numbers_that_are_flushed_to_zero_decide_nothing() -> None:
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1e-39], [0.0]]))
        layer.bias.zero_()
    bounds = IntervalNetwork.of(nn.Sequential(layer), (1,))
    assert bounds.radii(torch.tensor([[200]]), LEVELS, torch.tensor([0])).tolist() == [UNDECIDED]


def test_scores_without_a_linear_layer_behind_them_are_compared_by_themselves() -> None:
    network = nn.Sequential(nn.AvgPool1d(2), nn.Flatten())
    bounds = IntervalNetwork.of(network, (1, 4))
    stored = torch.tensor([[[100, 100, 49, 49]]])
    steps = int(bounds.radii(stored, LEVELS, torch.tensor([0])))
    assert steps / STEPS == pytest.approx(51 / LEVELS / 2, abs=2e-6)
    assert steps / STEPS < 51 / LEVELS / 2


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).cos()


def _hooked() -> nn.Module:
    layer = nn.ReLU()
    layer.register_forward_hook(lambda module, inputs, output: -output)
    return layer


def _patched() -> nn.Module:
    layer = nn.ReLU()
    layer.forward = torch.cos  # type: ignore[method-assign]
    return layer


def _infinite() -> nn.Module:
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.bias, float("inf"))
    return layer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (nn.Tanh, "Tanh"),
        (nn.GELU, "GELU"),
        (lambda: nn.BatchNorm1d(4), "BatchNorm1d"),
        (lambda: nn.Dropout(0.1), "Dropout"),
        (Own, "Own"),
        (lambda: OwnLinear(4, 4), "OwnLinear"),
        (_hooked, "a hook"),
        (_patched, "a hook"),
        (_infinite, "not finite"),
        (lambda: nn.Linear(4, 4).double(), "float64"),
        (lambda: nn.Linear(5, 4), "shape (4,)"),
        (lambda: nn.Conv2d(1, 1, 1), "shape (4,)"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "ParametrizedLinear"),
    ],
)
def test_the_first_layer_without_bounds_is_named(make: Callable[[], nn.Module], words: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 4), make()), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(ModelError) as refused:
        IntervalNetwork.of(network, (4,))
    assert refused.value.where == "1.1"
    assert words in refused.value.got


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), "padding_mode circular"),
        (nn.MaxPool2d(2, return_indices=True), "return_indices"),
        (nn.AvgPool2d(2, divisor_override=3), "divisor_override"),
        (nn.Conv2d(1, 1, 9), "shape (1, 8, 8)"),
        (nn.Linear(8, 8), "shape (1, 8, 8)"),
    ],
)
def test_forms_of_layers_without_bounds_are_named(layer: nn.Module, words: str) -> None:
    with pytest.raises(ModelError) as refused:
        IntervalNetwork.of(nn.Sequential(nn.ReLU(), layer, nn.Flatten(), nn.LazyLinear(2)), (1, 8, 8))
    assert refused.value.where == "1"
    assert words in refused.value.got


@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(4, 1), (4,)), (nn.ReLU(), (2, 2)), (nn.ReLU(), (1,))])
def test_a_network_needs_two_classes(layer: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="two or more classes"):
        IntervalNetwork.of(nn.Sequential(layer), shape)


def test_a_network_of_its_own_code_is_refused_by_its_name() -> None:
    with pytest.raises(ModelError) as refused:
        IntervalNetwork.of(Own(), (4,))
    assert refused.value.where == "Own"
