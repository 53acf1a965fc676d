"""Where noise enters: recognised in the network, bounded, and refused where nothing is known."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.grid_noise import repeatable
from twinproof.certification.lowering import AS_GIVEN, CHANNELS_LAST
from twinproof.certification.method import Method, Sampling
from twinproof.certification.noise_site import TARGETS, WhitenedLayer, identity_norm, layer_norm, papers_norm
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
from twinproof.layers.noise_placement import UNEQUAL_INPUT, add_noise
from twinproof.privacy.paper_formulas import paper_single_feature_map

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
    recorded = UNEQUAL_INPUT if place is Place.INPUT and spread != "uniform" else place
    assert (smoothed.own_noise, smoothed.site.place, smoothed.noise.law, smoothed.levels) == (True, recorded, law, 255)
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


LEVELS = 255
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 5), (6,)),
    "strides": (nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 6, 6)),
    "groups": (nn.Conv2d(2, 4, 3, groups=2, dilation=2, bias=False), (2, 7, 7)),
    "one axis": (nn.Conv1d(1, 3, 3, padding="same"), (1, 9)),
}


def _whitened(name: str, law: Law, sigma: float = 0.3) -> tuple[WhitenedLayer, NDArray[np.float64], Tensor]:
    """The layer, its scales, and some stored inputs."""
    torch.manual_seed(3)
    layer, shape = CASES[name]
    outputs = math.prod(layer(torch.zeros(1, *shape)).shape)
    scales = np.random.default_rng(5).uniform(0.4, 1.6, size=outputs).astype(np.float32).astype(np.float64)
    stored = torch.randint(0, LEVELS + 1, (40, *shape), generator=torch.Generator().manual_seed(1)).float()
    return WhitenedLayer(layer, shape, scales, law, sigma, LEVELS), scales, stored


def _exact(name: str, stored: Tensor, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """S^-1 W x by torch's own layer in float64, without its bias."""
    layer = CASES[name][0]
    with torch.no_grad():
        both = torch.cat((stored, torch.zeros_like(stored[:1]))).double() / LEVELS
        answers = layer.double()(both)
        layer.float()
    return np.asarray((answers[:-1] - answers[-1:]).flatten(1)) / scales


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", list(CASES))
def test_points_lie_on_the_grid_next_to_the_real_layer(name: str, law: Law) -> None:
    whitened, scales, stored = _whitened(name, law)
    points = np.asarray(whitened.points(stored), dtype=np.float64)
    grid = whitened.noise.grid
    assert points.shape == (40, whitened.dimension)
    assert (points / grid == np.rint(points / grid)).all()
    assert np.abs(points - _exact(name, stored, scales)).max() <= grid / 2 * (1 + 1e-6)
    assert np.abs(points).max() <= whitened.noise.largest
    edge = whitened.noise.table.reach * grid
    assert ((points.astype(np.float32) + np.float32(edge)).astype(np.float64) == points + edge).all(), "sums are exact"


def test_points_do_not_depend_on_the_batch_nor_on_the_bias() -> None:
    whitened, _, stored = _whitened("strides", Law.GAUSSIAN)
    whole = whitened.points(stored)
    assert torch.equal(whole[7:8], whitened.points(stored[7:8]))
    assert not whitened.points(torch.zeros_like(stored[:1])).any()
    assert len(whitened.points(stored[:0])) == 0


def _excess(whitened: WhitenedLayer, law: Law, slack: float, norm: float, stored: Tensor) -> int:
    """How many pairs of inputs lie further apart in the layer than ``norm`` times their l2 distance and ``slack`` allow."""
    points, inputs = np.asarray(whitened.points(stored), dtype=np.float64), np.asarray(stored.flatten(1)) / LEVELS
    order = 2 if law is Law.GAUSSIAN else 1
    apart = np.linalg.norm(points[:, None] - points[None, :], ord=order, axis=2)
    return int((apart > norm * np.linalg.norm(inputs[:, None] - inputs[None, :], axis=2) + slack).sum())


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", list(CASES))
def test_norm_and_slack_bound_every_pair(name: str, law: Law) -> None:
    whitened, scales, stored = _whitened(name, law)
    norm = layer_norm(*CASES[name], law, "l2", scales).value
    close = torch.cat((stored, (stored + 1).clamp(max=LEVELS)))
    assert _excess(whitened, law, whitened.slack, norm, close) == 0


def _staircase() -> tuple[WhitenedLayer, Tensor]:
    """64 equal outputs, so that all of them are rounded the same way: as far apart as two roundings can be."""
    layer = nn.Linear(1, 64, bias=False)
    nn.init.constant_(layer.weight, 1 / 8)
    stored = torch.arange(0, LEVELS + 1).float()[:, None]
    return WhitenedLayer(layer, (1,), np.ones(64), Law.GAUSSIAN, 50.0, LEVELS), stored


def test_slack_is_needed_and_nearly_reached() -> None:
    whitened, stored = _staircase()
    assert _excess(whitened, Law.GAUSSIAN, whitened.slack, 1.0, stored) == 0
    assert _excess(whitened, Law.GAUSSIAN, 0.9 * whitened.slack, 1.0, stored) > 0


@pytest.mark.parametrize(("law", "power"), [(Law.GAUSSIAN, 0.5), (Law.LAPLACE, 1.0)])
def test_slack_is_the_documented_number_of_steps(law: Law, power: float) -> None:
    whitened, _, _ = _whitened("strides", law)
    steps = whitened.slack / whitened.noise.grid
    assert whitened.dimension**power <= steps <= whitened.dimension**power * (1 + 1e-6), "float64 adds next to nothing"


def test_a_layer_without_weights_is_refused() -> None:
    layer = nn.Linear(2, 2)
    nn.init.zeros_(layer.weight)
    with pytest.raises(ModelError, match="ignores its input"):
        WhitenedLayer(layer, (2,), np.ones(2), Law.GAUSSIAN, 0.5, LEVELS)


IDENTITY = [
    (Law.GAUSSIAN, "l1", 1.0),
    (Law.GAUSSIAN, "l2", 1.0),
    (Law.GAUSSIAN, "linf", math.sqrt(7)),
    (Law.LAPLACE, "l1", 1.0),
    (Law.LAPLACE, "l2", math.sqrt(7)),
    (Law.LAPLACE, "linf", 7.0),
]


@pytest.mark.parametrize(("law", "norm", "value"), IDENTITY)
def test_norms_of_the_identity(law: Law, norm: str, value: float) -> None:
    found = identity_norm(law, norm, 7)
    assert value <= found.value <= value * (1 + 1e-15)
    # The same by the layer that multiplies by one.
    layer = nn.Conv1d(1, 1, 1, bias=False)
    nn.init.ones_(layer.weight)
    assert layer_norm(layer, (1, 7), law, norm, np.ones(7)).value == pytest.approx(value, rel=1e-6)


def test_targets_are_the_norms_that_hide_a_shift() -> None:
    assert {law: str(norm) for law, norm in TARGETS.items()} == {Law.GAUSSIAN: "l2", Law.LAPLACE: "l1"}


def test_the_papers_norms_are_named_and_used_where_they_have_one() -> None:
    layer, shape = CASES["strides"]
    ones = np.ones(36)
    claimed = papers_norm(layer, shape, Law.GAUSSIAN, "linf", ones)
    assert (claimed.value, claimed.method) == (paper_single_feature_map(layer, shape, ones), "paper: single feature map")
    assert papers_norm(layer, shape, Law.GAUSSIAN, "l2", ones).method == "paper: reshaped kernel"
    assert papers_norm(*CASES["linear"], Law.GAUSSIAN, "linf", np.ones(5)).method == "paper: largest row"
    for law, norm in ((Law.GAUSSIAN, "l1"), (Law.LAPLACE, "linf")):
        assert papers_norm(layer, shape, law, norm, ones) == layer_norm(layer, shape, law, norm, ones)
