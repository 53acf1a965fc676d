"""Networks with two noises through ``smooth``: the same network, the right noise and norms, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.certification.bounds import Charge
from twinproof.certification.confidence import Evidence
from twinproof.certification.grid_noise import GridNoise, joint_noise
from twinproof.certification.method import Method, Sampling
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.certification.two_noise_bounds import outgoing_sums, rates
from twinproof.certification.two_noises import NoisyLayer, TwoNoisesSite
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, RandomSpread, Spread, UniformSpread, silenced
from twinproof.layers.noise_placement import add_two_noises
from twinproof.privacy.linear_maps import layer_map

SHAPE = (1, 7, 6)


def _network(kind: str = "convolution", *, scales: tuple[float, float] = (0.2, 0.3), equal: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    modules: list[nn.Module] = (
        [nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4)]
        if kind == "convolution"
        else [nn.Flatten(), nn.Linear(42, 8), nn.Tanh(), nn.Linear(8, 4)]
    )

    def behind(shape: tuple[int, ...]) -> NoiseLayer:
        spread: Spread = UniformSpread(shape) if equal else FixedSpread(shape, np.linspace(0.5, 1.5, int(np.prod(shape))))
        return NoiseLayer(shape, Law.LAPLACE, scales[1], spread)

    return add_two_noises(
        nn.Sequential(*modules), SHAPE, NoiseLayer(SHAPE, Law.LAPLACE, scales[0], UniformSpread(SHAPE)), behind
    )


def _inputs(count: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (count, *SHAPE), generator=torch.Generator().manual_seed(2))


def _site(smoothed: SmoothedClassifier) -> TwoNoisesSite:
    assert isinstance(smoothed.site, TwoNoisesSite)
    return smoothed.site


@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_without_noise_the_site_is_the_network(kind: str) -> None:
    network = _network(kind).eval()
    site = smooth(network).site
    with torch.no_grad(), silenced(network):
        expected = network(_inputs().float() / 255)
        found = site.network(site.points(_inputs().float()) / 255)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_noise_of_the_two_places_has_its_scale_and_its_place(kind: str) -> None:
    """One step of the drawn vector at a time: input noise moves the input, hidden noise the layer, in the stated scale."""
    network = _network(kind).eval()
    site = _site(smooth(network))
    points = site.points(_inputs(1).float())
    drawn = torch.zeros_like(points)
    drawn[0, 5], drawn[0, 42 + 7] = 0.25 * site.noise.sigma * 255, -2 * site.noise.sigma * 255
    with torch.no_grad(), silenced(network):
        moved = _inputs(1).float().flatten(1)
        moved[0, 5] += 0.25 * 0.2 * 255
        modules = list(network.children())[1:]
        place = next(at for at, module in enumerate(modules) if isinstance(module, NoiseLayer))
        hidden = (moved / 255).view(1, *SHAPE)
        for module in modules[:place]:
            hidden = module(hidden)
        noise = modules[place]
        assert isinstance(noise, NoiseLayer)
        scale = float(noise.spread.least_scales()[7])
        hidden.view(-1)[7] += -2 * 0.3 * scale
        for module in modules[place + 1 :]:
            hidden = module(hidden)
        found = site.network((points + drawn) / 255)
    torch.testing.assert_close(found, hidden, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_whole_numbers_of_two_noisy_inputs_are_as_near_as_the_layer_and_slack_allow(kind: str) -> None:
    """v(w + a) - v(w) in l1, for random noisy inputs: at most the layer's own movement plus one for each output.

    Without the slack it is more than the layer's movement: a rounded layer cannot be charged as if it were not.
    """
    network = _network(kind)
    site = _site(smooth(network))
    first = next(site.network.children())
    assert isinstance(first, NoisyLayer)
    draw = torch.Generator().manual_seed(4)
    outputs, steps = site.dimension(SHAPE) - 42, site.noise.steps
    layer, shape = (network[1], SHAPE) if kind == "convolution" else (network[2], (42,))
    costs = outgoing_sums(layer, shape, np.linspace(0.5, 1.5, outputs).astype(np.float32)) / 0.3
    excess = []
    for _ in range(200):
        noisy = torch.randint(-2000, 2000, (1, 42), generator=draw).double() * site.noise.grid / 255
        change, at = torch.zeros(1, 42).double(), int(torch.randint(0, 42, (1,), generator=draw))
        change[0, at] = 3 / 255
        zeros = torch.zeros(1, outputs).double()
        with torch.no_grad():
            both = first(torch.cat([torch.cat([noisy, zeros], 1), torch.cat([noisy + change, zeros], 1)])).flatten(1)
        excess.append(float((both[1] - both[0]).abs().sum()) / first.step / steps - 3 / 255 * costs[at])
    assert 0 < max(excess) <= site.slack / site.noise.sigma
    assert site.slack == pytest.approx(outputs * site.noise.grid / 255, rel=1e-6)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_norms_are_those_of_the_rates(norm: str) -> None:
    network = _network(equal=True)
    site = _site(smooth(network))
    found = rates(network[1], SHAPE, norm, 0.2, 0.3)
    single, composed = site.norm_bound(SHAPE, norm), site.norm_bound(SHAPE, norm, Charge.COMPOSED)
    sigma = site.noise.sigma
    assert sigma == pytest.approx(0.2, abs=0)
    assert single.value == pytest.approx(sigma * found.single_pass, rel=1e-8)
    assert single.value >= sigma * found.single_pass
    assert composed.value == pytest.approx(sigma * found.composed, rel=1e-8)
    assert site.slackless_norm(SHAPE, norm) == pytest.approx(sigma * found.input, rel=1e-8)
    assert site.slackless_norm(SHAPE, norm, Charge.COMPOSED) == composed.value


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("scales", [(0.2, 0.3), (0.02, 1.0), (1.0, 0.05)])
def test_certify_never_gives_less_than_the_composition(norm: str, scales: tuple[float, float]) -> None:
    """For every number of votes, slack included: what decides is the larger of two lines."""
    network, votes = _network(scales=scales), np.arange(501, dtype=np.int64)
    evidence = Evidence.of_votes(500, votes)
    single, published = (
        smooth(network, method=Method(norm=norm, bound=bound)).radius_rule(SHAPE, 4).certified(evidence, 0.001).radii
        for bound in ("tight", "composition")
    )
    assert (single >= published).all()
    assert single[-1] >= 1.9 * published[-1] > 0


def test_certificates_are_made_and_repeatable() -> None:
    smoothed, sampling = smooth(_network(), method=Method(norm="linf")), Sampling(n0=20, n=200)
    first, again = (smoothed.certify(_inputs(), sampling=sampling, key=Key.from_seed(1)) for _ in range(2))
    assert first == again
    scores = Method(norm="l1", statistic="scores", confidence="empirical-bernstein")
    assert len(smooth(_network(), method=scores).certify(_inputs(2), sampling=sampling)) == 2


def test_changed_weights_and_other_shapes_are_refused() -> None:
    network = _network()
    smoothed = smooth(network)
    with pytest.raises(DataError, match="do not have the shape"):
        smoothed.certify(torch.zeros(1, 1, 6, 7, dtype=torch.int64))
    with torch.no_grad():
        next(network[1].parameters()).mul_(2)
    with pytest.raises(ModelError, match="changed after it was smoothed"):
        smoothed.certify(_inputs())


def _with_noises(first: NoiseLayer, second: NoiseLayer) -> nn.Sequential:
    return add_two_noises(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), (3,), first, lambda shape: second)


def _noise(size: int, law: Law = Law.LAPLACE, deviation: float = 1.0, spread: Spread | None = None) -> NoiseLayer:
    return NoiseLayer((size,), law, deviation, spread or UniformSpread((size,)))


REFUSED = [
    (_noise(3, Law.GAUSSIAN), _noise(2), "both have one law"),
    (_noise(3), _noise(2, Law.GAUSSIAN), "both have one law"),
    (_noise(3, deviation=0.0), _noise(2), "deviation above 0"),
    (_noise(3), _noise(2, deviation=0.0), "deviation above 0"),
    (_noise(3), _noise(2, spread=RandomSpread((2,), 0.5)), "scales that are fixed"),
    (_noise(3, spread=FixedSpread((3,), [1, 2, 3])), _noise(2), "unequal noise on the input"),
]


@pytest.mark.parametrize(("first", "second", "match"), REFUSED)
def test_what_has_no_proof_is_refused(first: NoiseLayer, second: NoiseLayer, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        smooth(_with_noises(first, second))


def test_a_deviation_for_two_noises_and_shared_noise_are_refused() -> None:
    with pytest.raises(ConfigError, match="has two deviations"):
        smooth(_network(), 0.5)
    with pytest.raises(ConfigError, match="shared noise is for equal noise at the input"):
        smooth(_network()).certify(_inputs(), sampling=Sampling(shared_noise=True))


@pytest.mark.parametrize("scale", [1e-4, 0.05, 1.0, 20.0])
@pytest.mark.parametrize("outputs", [1, 6272])
def test_whole_steps_are_read_back_from_float32_quotients(scale: float, outputs: int) -> None:
    noise = joint_noise(scale, 255, outputs)
    most = noise.table.reach + math.ceil(255 / noise.grid)
    whole = np.unique(np.linspace(-most, most, 20_001).round())
    rows = torch.from_numpy((whole * noise.grid).astype(np.float32)) / 255
    assert rows.dtype == torch.float32
    found = torch.round(rows.double() * (255 / noise.grid))
    assert np.array_equal(found.numpy(), whole)
    assert noise.steps >= 64


def test_noise_too_small_for_two_places_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small for noise at two places"):
        joint_noise(2e-6, 255, 10)
    with pytest.raises(ConfigError, match="inputs need stored levels"):
        joint_noise(0.5, 0, 10)


@pytest.mark.parametrize(("scale", "levels"), [(1e3, 255), (1e7, 255), (10.0, 65535), (1e6, 1)])
def test_noise_too_large_for_two_places_is_not_called_too_small(scale: float, levels: int) -> None:
    with pytest.raises(ConfigError, match=r"too large for noise at two places(.|\n)*or less"):
        joint_noise(scale, levels, 10)


def test_hooks_and_zero_weights_are_refused() -> None:
    network = _network()
    handle = network[0].register_forward_hook(lambda module, given, out: out)
    with pytest.raises(ModelError, match="hook would be left out"):
        smooth(network)
    handle.remove()
    with torch.no_grad():
        next(network[1].parameters()).zero_()
    with pytest.raises(ModelError, match="ignores its input"):
        smooth(network)


LAYER_SHAPE, HIDDEN = (1, 6, 6), 0.7


def _made() -> tuple[nn.Conv2d, GridNoise, NoisyLayer, Tensor]:
    torch.manual_seed(4)
    convolution = nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False)
    matrix = layer_map(convolution, LAYER_SHAPE)
    noise = joint_noise(0.35, 255, matrix.outputs)
    layer = NoisyLayer(matrix, noise, HIDDEN, (3, 3, 3), torch.device("cpu"))
    whole = torch.randint(-5000, 5000, (7, matrix.inputs + matrix.outputs))
    return convolution, noise, layer, whole * noise.grid / noise.levels


def test_it_is_the_layer_rounded_to_steps_plus_its_noise() -> None:
    convolution, noise, layer, rows = _made()
    step = HIDDEN / noise.steps
    inputs = rows[:, :36].double().view(-1, *LAYER_SHAPE)
    exact = nn.functional.conv2d(inputs, convolution.weight.double(), stride=2, padding=1).flatten(1).detach()
    drawn = torch.round(rows[:, 36:].double() * noise.levels / noise.grid)
    wanted = (torch.round(exact / step) + drawn) * step
    found = layer(rows.float()).flatten(1)
    # A product that falls between two whole numbers may be rounded either way by another order of sums.
    assert np.abs((found - wanted).numpy()).max() <= step * (1 + 1e-9)
    assert torch.isclose(found, wanted, rtol=0, atol=step / 1000).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_left_as_they_are(dtype: torch.dtype) -> None:
    _, _, layer, rows = _made()
    given = rows.to(dtype)
    kept = given.clone()
    layer(given)
    assert torch.equal(given, kept)
