"""Where noise enters: recognised in the network, kept the network that was given, and refused where nothing is known."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from twinproof.certification.grid_noise import repeatable
from twinproof.certification.lowering import AS_GIVEN, CHANNELS_LAST
from twinproof.certification.method import Method, Sampling
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.keys import Key
from twinproof.layers.noise import (
    FixedSpread,
    Law,
    LearnedSpread,
    NoiseLayer,
    Place,
    RandomSpread,
    Spread,
    UniformSpread,
    silenced,
)
from twinproof.layers.noise_placement import add_noise

SHAPE = (1, 6, 6)
SPREADS = ["uniform", "fixed", "learned", "random"]


def _spread(name: str, shape: tuple[int, ...]) -> Spread:
    if name == "fixed":
        return FixedSpread(shape, np.linspace(0.5, 1.5, math.prod(shape)))
    if name == "learned":
        made = LearnedSpread(shape)
        with torch.no_grad():
            made.log_shares.copy_(torch.linspace(-1, 1, made.coordinates))
        return made
    return RandomSpread(shape, 0.3) if name == "random" else UniformSpread(shape)


def _network(kind: str, place: Place, spread: str = "uniform", law: Law = Law.GAUSSIAN) -> nn.Sequential:
    torch.manual_seed(1)
    first: list[nn.Module] = (
        [nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)]
        if kind == "convolution"
        else [nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 4)]
    )
    return add_noise(nn.Sequential(*first), SHAPE, place, lambda shape: NoiseLayer(shape, law, 0.4, _spread(spread, shape)))


def _inputs(count: int = 5) -> torch.Tensor:
    return torch.randint(0, 256, (count, *SHAPE), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_without_noise_the_network_is_the_one_given(kind: str, place: Place, spread: str, law: Law) -> None:
    network = _network(kind, place, spread, law)
    smoothed = smooth(network, input_shape=SHAPE)
    assert (smoothed.own_noise, smoothed.site.place, smoothed.noise.law, smoothed.levels) == (True, place, law, 255)
    assert smoothed.noise.sigma == 0.4
    quiet = smooth(copy.deepcopy(network), 1e-3, input_shape=SHAPE) if spread == "random" else smoothed
    stored = _inputs().float()
    with torch.no_grad(), silenced(network):
        wanted, got = network(stored / 255), quiet.site.network(quiet.site.points(stored) / quiet.noise.levels)
    slack = 0.03 if spread == "random" else 5 * quiet.noise.grid / quiet.noise.levels + 1e-5
    assert torch.allclose(got, wanted, atol=slack)


def test_the_noise_has_the_scales_of_the_layer() -> None:
    network = _network("linear", Place.FIRST_LAYER, "fixed")
    smoothed, point = smooth(network), torch.zeros(1, *SHAPE)
    scales = torch.from_numpy(np.linspace(0.5, 1.5, 8)).float()
    unwhitened = next(smoothed.site.network.children())
    layer = unwhitened(smoothed.site.points(point) + smoothed.noise.sigma * torch.eye(8))
    assert torch.allclose(layer - network.get_submodule("1").bias, 0.4 * torch.diag(scales), atol=1e-6)


def test_sigma_replaces_the_deviation_of_the_noise() -> None:
    for place in Place:
        assert smooth(_network("linear", place), 0.7).noise.sigma == 0.7


def test_a_network_without_noise_gets_gaussian_noise_at_the_input() -> None:
    smoothed = smooth(nn.Linear(4, 2), 0.5, levels=16, method=Method(norm="linf"))
    assert (smoothed.own_noise, smoothed.site.place, smoothed.noise.law) == (False, Place.INPUT, Law.GAUSSIAN)
    assert (smoothed.levels, smoothed.norm, smoothed.site.slack) == (16, "linf", 0.0)
    assert smoothed.operator_norm((4,)).value == pytest.approx(2.0)


def test_equal_noise_at_the_input_is_plain_smoothing() -> None:
    """With a noise layer at the input the same draws give the same certificates as without it."""
    network = _network("convolution", Place.INPUT)
    bare = nn.Sequential(*(module for name, module in network.named_children() if name != "noise"))
    sampling, key = Sampling(30, 300), Key.from_seed(4)
    ours, plain = (smooth(model, 0.4).certify(_inputs(), sampling=sampling, key=key) for model in (network, bare))
    assert ours == plain


@pytest.mark.parametrize("place", list(Place))
def test_shared_noise_at_the_input_works_for_networks_with_noise(place: Place) -> None:
    smoothed = smooth(_network("convolution", place), input_shape=SHAPE)
    if place is Place.FIRST_LAYER:
        with pytest.raises(ConfigError, match="equal noise"):
            smoothed.base_for(_inputs(), Sampling(shared_noise=True))
    else:
        assert len(smoothed.certify(_inputs(), sampling=Sampling(20, 200, shared_noise=True))) == 5


def test_behind_a_convolution_the_size_of_the_images_is_needed_and_kept() -> None:
    network = _network("convolution", Place.FIRST_LAYER)
    with pytest.raises(ConfigError, match="size of the images"):
        smooth(network)
    smoothed = smooth(network, input_shape=SHAPE)
    with pytest.raises(DataError, match="shape that the first layer was bounded for"):
        smoothed.certify(np.zeros((1, 1, 5, 5), dtype=np.uint8))


@pytest.mark.parametrize("changed", ["0.weight", "0.bias", "noise.spread.log_shares"])
def test_a_network_that_was_changed_since_is_refused(changed: str) -> None:
    """Otherwise the first layer would be the old one and the rest the new one: a network that nobody has."""
    network = _network("convolution", Place.FIRST_LAYER, "learned")
    smoothed = smooth(network, input_shape=SHAPE)
    before, first = smoothed.site.points(_inputs().float()), smoothed.operator_norm(SHAPE).value
    kept = network.get_parameter(changed).detach().clone()
    with torch.no_grad():
        network.get_parameter(changed)[0] += 1
    with pytest.raises(ModelError, match="changed after it was smoothed"):
        smoothed.certify(_inputs(), sampling=Sampling(10, 100))
    assert changed == "0.bias" or smooth(network, input_shape=SHAPE).operator_norm(SHAPE).value != first
    with torch.no_grad():
        network.get_parameter(changed).copy_(kept)
    assert torch.equal(smoothed.site.points(_inputs().float()), before)


def test_the_norm_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    smoothed = smooth(_network("convolution", Place.FIRST_LAYER), input_shape=SHAPE)
    wanted = smoothed.operator_norm(SHAPE)
    monkeypatch.setattr("twinproof.certification.noise_site.layer_norm", None)
    assert smoothed.operator_norm(SHAPE) is wanted


def _scores(smoothed: SmoothedClassifier, form: str) -> torch.Tensor:
    base = smoothed.base_for(_inputs(), Sampling(), form=form)
    assert base.form == form
    with torch.inference_mode(), repeatable(torch.device("cpu"), Key.from_seed(1), "test"):
        scores: torch.Tensor = base.network(smoothed.site.points(_inputs().float()))
    return scores


@pytest.mark.parametrize("spread", ["fixed", "random"])
def test_the_rest_of_the_network_has_its_faster_forms(spread: str) -> None:
    smoothed = smooth(_network("convolution", Place.FIRST_LAYER, spread), input_shape=SHAPE)
    as_given, rewritten = (_scores(smoothed, form) for form in (AS_GIVEN, CHANNELS_LAST))
    assert torch.allclose(as_given, rewritten, atol=1e-5)
    assert not torch.equal(as_given[0], as_given[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("law", list(Law))
def test_a_gpu_has_the_same_points_and_certifies(law: Law, spread: str) -> None:
    network = _network("convolution", Place.FIRST_LAYER, spread, law)
    here, there = (smooth(copy.deepcopy(network).to(device), input_shape=SHAPE) for device in ("cpu", "cuda"))
    assert torch.equal(here.site.points(_inputs().float()), there.site.points(_inputs().float().cuda()).cpu())
    made = [one.certify(_inputs(), sampling=Sampling(50, 2000), key=Key.from_seed(1)) for one in (here, there, there)]
    assert made[1] == made[2]
    # The noise of the least scales is the same to the bit; what a random spread draws besides is each device's own.
    allowed = 400 if spread == "random" else 5
    assert all(abs(one.votes - other.votes) <= allowed for one, other in zip(*made[:2], strict=True) if one.top == other.top)
