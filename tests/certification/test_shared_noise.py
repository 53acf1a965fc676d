"""Shared noise: the first layer is linear to the bit, votes are those of input plus noise, and certificates are true."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from certify_oracles import bound_from_votes
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification import lowering, row_trial, shared_noise
from twinproof.certification import shared_noise as exact_first_layer
from twinproof.certification.fast_layers import sums
from twinproof.certification.grid_noise import GridNoise, input_noise
from twinproof.certification.lowering import AS_GIVEN, CHANNELS_LAST, DENSE
from twinproof.certification.method import Sampling
from twinproof.certification.shared_noise import ExactFirstLayer, SharedNetwork, SharedNoiseCounter, shared_network
from twinproof.certification.votes import NoisyRows
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.networks import build_network

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


CPU = torch.device("cpu")
KEY = Key.from_seed(3)
NOISE = input_noise(0.5, 255)
SHAPES = {"tramer-boneh-cnn": (1, 20, 20), "small-cnn": (3, 8, 8), "mlp": (1, 8, 8), "wrn-16-4": (3, 8, 8)}


def cut(name: str, rows: int = 1000, form: str | None = None) -> SharedNetwork:
    torch.manual_seed(0)
    return shared_network(build_network(name, SHAPES[name], 5), SHAPES[name], NOISE, CPU, rows, form=form)


def stored(name: str, count: int) -> Tensor:
    return torch.randint(0, 256, (count, *SHAPES[name]), generator=torch.Generator().manual_seed(1)).float()


def scores_of(network: SharedNetwork, levels: Tensor) -> Tensor:
    """The base classifier itself: scores of inputs plus noise, given in stored levels."""
    scores: Tensor = network.rest(network.first.of_inputs(levels).to(torch.float32))
    return scores


def votes_one_by_one(network: SharedNetwork, purpose: str, inputs: Tensor, draws: int, after: int = 0) -> Tensor:
    """The definition: the base classifier on each input plus each draw of the one shared stream."""
    shape = inputs.shape[1:]
    drawn = NOISE.draws(KEY, f"{purpose}-shared", 0, 0, draws, math.prod(shape), CPU).view(-1, *shape)[after:]
    choices = [scores_of(network, one + drawn).argmax(dim=1) for one in inputs]
    return torch.stack([torch.bincount(choice, minlength=network.classes) for choice in choices])


@pytest.mark.parametrize("name", ["tramer-boneh-cnn", "small-cnn", "mlp"])
@pytest.mark.parametrize(("rows", "after"), [(1000, 0), (7, 0), (100, 113)])
def test_votes_are_those_of_the_base_classifier_on_input_plus_noise(name: str, rows: int, after: int) -> None:
    with torch.inference_mode():
        network, inputs = cut(name, rows), stored(name, 3)
        counted = SharedNoiseCounter(network, NOISE, KEY, rows).count("estimate", [4, 0, 9], inputs, 300, after=after)
        assert torch.equal(counted, votes_one_by_one(network, "estimate", inputs, 300, after))
    assert counted.sum(dim=1).tolist() == [300 - after] * 3


def test_the_form_of_a_gpu_reads_both_summands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layers on a CPU, where they run without their kernels."""
    monkeypatch.setitem(lowering._FORMS, "cpu", (DENSE,))
    name = "tramer-boneh-cnn"
    with torch.inference_mode():
        network, inputs = cut(name, form=DENSE), stored(name, 3)
        assert network._head is not None
        counted = SharedNoiseCounter(network, NOISE, KEY, 1000).count("estimate", [0, 1, 2], inputs, 300)
        assert torch.equal(counted, votes_one_by_one(network, "estimate", inputs, 300))
        assert float((scores_of(network, inputs) - scores_of(cut(name, form=AS_GIVEN), inputs)).abs().max()) < 1e-5


def test_planted_float_sums_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summands rounded to float32 before they are added: the scores are then no function of input plus noise."""
    name = "tramer-boneh-cnn"
    network, inputs = cut(name, form=AS_GIVEN), stored(name, 2)
    drawn = NOISE.draws(KEY, "estimate-shared", 0, 0, 50, math.prod(SHAPES[name]), CPU).view(-1, *SHAPES[name])
    both = network.first.of_inputs(inputs), network.first.of_noise(drawn)
    wanted = torch.cat([scores_of(network, one + drawn) for one in inputs])
    assert torch.equal(network(*both), wanted)
    monkeypatch.setattr(shared_noise, "sums", lambda one, other: sums(one.float(), other.float()))
    assert not torch.equal(network(*both), wanted)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("form", [None, AS_GIVEN, CHANNELS_LAST])
def test_the_base_classifier_is_the_network_up_to_rounding(name: str, form: str | None) -> None:
    torch.manual_seed(0)
    model, inputs = build_network(name, SHAPES[name], 5).eval(), stored(name, 20)
    network = cut(name, form=form)
    with torch.inference_mode():
        assert float((scores_of(network, inputs) - model(inputs / 255)).abs().max()) < 1e-5
    assert network.arithmetic == "float32"
    assert network.form == form or form is None


def _drawn(monkeypatch: pytest.MonkeyPatch, purposes: tuple[str, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """All noise vectors that the first layer was given."""
    seen: list[Tensor] = []
    original = ExactFirstLayer.of_noise

    def record(self: ExactFirstLayer, levels: Tensor) -> Tensor:
        seen.append(levels.flatten(1).clone())
        return original(self, levels)

    monkeypatch.setattr(ExactFirstLayer, "of_noise", record)
    counter = SharedNoiseCounter(cut("mlp"), NOISE, KEY, 1000)
    for purpose in purposes:
        counter.count(purpose, [0, 1], stored("mlp", 2), 400)
    return np.asarray(torch.cat(seen))


def test_selection_and_estimation_share_no_draw_and_inputs_share_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _drawn(monkeypatch, ("select", "estimate"))
    assert len(seen) == 2 * 400, "each draw is made once for all inputs"
    assert len(np.unique(seen, axis=0)) == len(seen)
    own = NOISE.draws(KEY, "estimate", 0, 0, 400, 64, CPU).numpy()
    assert len(np.unique(np.concatenate((seen, own)), axis=0)) == len(seen) + len(own), "input 0 has noise of its own as well"


def test_memory_does_not_grow_with_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[int, set[int]] = {}
    forward = SharedNetwork.forward

    def record(self: SharedNetwork, inputs: Tensor, draws: Tensor) -> Tensor:
        sizes[count].add(len(inputs) * len(draws))
        return forward(self, inputs, draws)

    monkeypatch.setattr(SharedNetwork, "forward", record)
    counter = SharedNoiseCounter(cut("mlp"), NOISE, KEY, 1000)
    for count in (60, 500, 5000):
        sizes[count] = set()
        counter.count("estimate", list(range(7)), stored("mlp", 7), count)
    assert max(sizes[60] | sizes[500] | sizes[5000]) <= 128


def test_planted_reuse_of_the_selection_draws_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SharedNoiseCounter._source

    def reuse(self: SharedNoiseCounter, purpose: str, inputs: Tensor, draws: int, after: int) -> NoisyRows:
        return source(self, "select", inputs, draws, after)

    monkeypatch.setattr(SharedNoiseCounter, "_source", reuse)
    seen = _drawn(monkeypatch, ("select", "estimate"))
    assert len(np.unique(seen, axis=0)) < len(seen)


def test_votes_do_not_depend_on_the_other_inputs_or_on_threads() -> None:
    network, inputs = cut("mlp"), stored("mlp", 5)
    counter, before = SharedNoiseCounter(network, NOISE, KEY, 64), torch.get_num_threads()
    whole = counter.count("estimate", list(range(5)), inputs, 500)
    assert torch.equal(counter.count("estimate", [3], inputs[3:4], 500)[0], whole[3])
    try:
        torch.set_num_threads(2)
        assert torch.equal(counter.count("estimate", list(range(5)), inputs, 500), whole)
    finally:
        torch.set_num_threads(before)
    first = counter.count("estimate", list(range(5)), inputs, 200)
    assert torch.equal(first + counter.count("estimate", list(range(5)), inputs, 500, after=200), whole)


class Broken(nn.Module):
    """NaN for a share of the rows."""

    def forward(self, x: Tensor) -> Tensor:
        broken = torch.where(x[:, :1] > 0, float("nan"), 0.0)
        return torch.cat((broken, torch.ones_like(broken)), dim=1)


def half_space(weight: list[float], bias: float, *after: nn.Module) -> nn.Sequential:
    """Class 0 where weight x + bias > 0."""
    first, second = nn.Linear(len(weight), 1), nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([weight]))
        first.bias.fill_(bias)
        second.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    return nn.Sequential(first, *(after or (second,)))


def test_nan_scores_vote_for_nobody() -> None:
    network = shared_network(half_space([1.0, 0.0], -0.5, Broken()), (2,), NOISE, CPU, 100)
    votes = SharedNoiseCounter(network, NOISE, KEY, 100).count("estimate", [0], torch.tensor([[128.0, 0.0]]), 2000)
    assert votes[0, 0] == 0, "argmax would have given NaN the victory"
    assert 900 < int(votes[0, 1]) < 1100


class Scalar(nn.Module):
    """No score per class, but for batches of the sizes that are looked at before anything is counted."""

    def forward(self, x: Tensor) -> Tensor:
        looked_at = {1, 16, *row_trial._SIZES}
        return torch.cat((x, -x), dim=1) if len(x) in looked_at else x.sum(dim=0, keepdim=True)


def test_scores_of_another_shape_are_refused() -> None:
    network = shared_network(half_space([1.0, 0.0], -0.5, Scalar()), (2,), NOISE, CPU, 100, form=AS_GIVEN)
    with pytest.raises(ModelError, match="one score per class"):
        SharedNoiseCounter(network, NOISE, KEY, 100).count("estimate", [0], torch.zeros(1, 2), 41)


class Mixing(nn.Module):
    """Looks at the other rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.sum(dim=0)


def test_a_rest_that_mixes_rows_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), Mixing(), nn.Linear(4, 2))
    with pytest.raises(ModelError, match="depends on the other inputs"):
        shared_network(model, (2,), NOISE, CPU, 100, form=CHANNELS_LAST)


def _hooked() -> nn.Module:
    model = half_space([1.0, 0.0], 0.0)
    model[0].register_forward_hook(lambda layer, given, made: made + 1)
    return model


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), (2,)),
        (lambda: nn.Sequential(nn.Linear(2, 2)), (2,)),
        (lambda: nn.Sequential(nn.Flatten()), (2,)),
        (nn.Sequential, (2,)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Conv2d(1, 1, 1), nn.Flatten()), (1, 4, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(16, 2)), (1, 4, 4)),
        (lambda: nn.Linear(2, 2), (2,)),
        (lambda: build_network("small-vit", (3, 8, 8), 4), (3, 8, 8)),
        (_hooked, (2,)),
    ],
)
def test_networks_without_a_linear_beginning_are_refused(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="begins with a linear layer"):
        shared_network(make(), shape, NOISE, CPU, 100)


def _share_of_votes(claimed: float, used: float) -> None:
    """One standard deviation from a hyperplane the share of votes must be Phi(1), to 6 standard errors."""
    draws, noise = 400_000, input_noise(used, 255)
    network = shared_network(half_space([0.6, 0.8], -0.87), (2,), noise, CPU, 4000)
    point = torch.tensor([[204.0, 204.0]])
    distance = float(network.first.of_inputs(point)[0, 0])
    share = int(SharedNoiseCounter(network, noise, KEY, 4000).count("estimate", [0], point, draws)[0, 0]) / draws
    expected = float(norm.cdf(distance / claimed))
    error = 6 * math.sqrt(expected * (1 - expected) / draws)
    assert abs(share - expected) <= error, f"share {share:.5f}, expected {expected:.5f} within {error:.5f}"


def test_votes_fall_as_the_stated_sigma_says() -> None:
    _share_of_votes(0.25, 0.25)


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_planted_sigma_wrong_by_two_percent_is_caught(factor: float) -> None:
    with pytest.raises(AssertionError, match="share"):
        _share_of_votes(0.25, 0.25 * factor)


# Inputs of one call fail together, so that each of these certificates has a key of its own. More than 9 of 1,000 fail with
# probability below 1e-6 at alpha 0.001.
_CERTIFICATES, _MOST_FAILURES = 1000, 9


def _false_certificates(bound: Callable[[Tensor, Sampling], tuple[bool, float]]) -> int:
    generator, sampling = np.random.default_rng(5), Sampling(n0=20, n=150)
    network = shared_network(half_space([0.6, 0.8], -0.7), (2,), NOISE, CPU, 200)
    failed = 0
    for number in range(_CERTIFICATES):
        counter = SharedNoiseCounter(network, NOISE, Key.from_seed(number), 200)
        point = torch.from_numpy(generator.integers(64, 192, size=(1, 2))).float()
        signed = float(network.first.of_inputs(point)[0, 0])
        top = int(counter.count("select", [0], point, sampling.n0).argmax())
        certified, radius = bound(counter.count("estimate", [0], point, sampling.n)[0, top], sampling)
        # The weights have length one: the score is the signed distance.
        failed += certified and (top != int(signed <= 0) or radius > abs(signed))
    return failed


def test_certificates_of_a_linear_classifier_are_true() -> None:
    def right(votes: Tensor, sampling: Sampling) -> tuple[bool, float]:
        made = bound_from_votes(votes.numpy().reshape(1), sampling, NOISE.sigma, NOISE.tau(2))
        return bool(made.certified[0]), float(made.radii[0])

    assert _false_certificates(right) <= _MOST_FAILURES


def test_planted_share_of_votes_instead_of_a_bound_is_caught() -> None:
    def wrong(votes: Tensor, sampling: Sampling) -> tuple[bool, float]:
        share = min(int(votes) / sampling.n, 1 - 1e-9)
        return share > 0.5, NOISE.sigma * float(norm.ppf(share))

    assert _false_certificates(wrong) > _MOST_FAILURES
