"""Networks that bring their noise along: attacked through it, in expectation, and silenced only where that is wanted."""

from __future__ import annotations

import functools

import pytest
import torch
from attack_problems import KEY, digits, digits_network, smooth_network
from torch import Tensor, nn

from twinproof.attacks.objective import Objective, OwnNoise, Plain, Smoothed, without_noise
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import Looker, global_seed, pgd
from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread, silenced
from twinproof.layers.noise_placement import add_noise

SIGMA, ROWS = 0.25, 150
THREAT = Threat("l2", 0.7)
CPU = torch.device("cpu")


class Ripple(nn.Module):
    """Gradients at a point say nothing, means over noise smooth it away."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.05 * torch.sin(60 * inputs)


def noisy(network: nn.Module, place: Place = Place.INPUT, law: Law = Law.GAUSSIAN, size: int = 64) -> nn.Sequential:
    made = add_noise(network, (size,), place, lambda shape: NoiseLayer(shape, law, SIGMA, UniformSpread(shape)))
    return made.eval()


@functools.cache
def rippled() -> nn.Sequential:
    network = digits_network(SIGMA)
    return noisy(nn.Sequential(Ripple(), *network.children()))


def data() -> tuple[Tensor, Tensor]:
    _, _, inputs, labels = digits()
    return inputs[:ROWS], labels[:ROWS]


@functools.cache
def accuracy_after(objective: str) -> float:
    """Of the majority over the layer's noise, with draws that no attack has seen."""
    inputs, labels = data()
    targets: dict[str, Objective] = {"own noise": OwnNoise(rippled(), 16), "silenced": Plain(without_noise(rippled()))}
    if objective in targets:
        inputs = run_attack(pgd(20), targets[objective], inputs, labels, THREAT, key=KEY, batch=ROWS).inputs
    answers = predicted_labels(OwnNoise(rippled(), judged_on=400), inputs, key=Key.from_seed(99))
    return float((answers == labels).float().mean())


def test_planted_attack_on_the_silenced_network_is_weaker_and_noticed() -> None:
    """Crafted without the noise, as the papers did, the smoothed classifier looks robust; through its noise it is not."""
    assert accuracy_after("own noise") < accuracy_after("clean") - 0.3
    assert accuracy_after("silenced") > accuracy_after("own noise") + 0.2


def test_noise_in_a_layer_at_the_input_is_the_noise_of_smoothing() -> None:
    """-log of the mean probability over 20,000 draws, by the layer and by ``Smoothed``: equal up to their scatter."""
    network, (inputs, labels) = digits_network(SIGMA), data()
    found = []
    for objective in (OwnNoise(noisy(network), judged_on=20_000), Smoothed(network, SIGMA, judged_on=20_000)):
        looker = Looker(objective, inputs[:6], torch.Generator().manual_seed(1), judge_seed=3)
        found.append((-looker.judge(inputs[:6], labels[:6]).losses).exp())
    assert float((found[0] - found[1]).abs().max()) < 0.02, "five deviations of a mean of 20,000 draws in [0, 1]"
    doubled = noisy(network)
    layer = doubled.get_submodule("noise")
    assert isinstance(layer, NoiseLayer)
    layer.set_deviation(2 * SIGMA)
    looker = Looker(OwnNoise(doubled, judged_on=20_000), inputs[:6], torch.Generator().manual_seed(1), judge_seed=3)
    planted = (-looker.judge(inputs[:6], labels[:6]).losses).exp()
    assert float((planted - found[1]).abs().max()) > 0.05, "the planted deviation is seen"


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("law", list(Law))
def test_gradients_are_those_of_the_mean_probability(place: Place, law: Law) -> None:
    """The same draws by hand: autograd through -log of the mean of softmax."""
    network = noisy(smooth_network(), place, law, size=12)
    inputs, labels = torch.rand(5, 12, generator=torch.Generator().manual_seed(2)), torch.arange(5) % 4
    looker = Looker(OwnNoise(network, draws=7), inputs, torch.Generator())
    with global_seed(11, CPU):
        look = looker.step(inputs, labels)
    leaf = inputs.clone().requires_grad_()
    with global_seed(11, CPU):
        scores = network(leaf.unsqueeze(1).expand(-1, 7, 12).reshape(-1, 12)).view(5, 7, -1)
    losses = -scores.softmax(dim=2).mean(dim=1).gather(1, labels[:, None]).log()
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    assert look.gradient is not None
    torch.testing.assert_close(look.losses, losses.detach().squeeze(1))
    torch.testing.assert_close(look.gradient, gradient, rtol=1e-4, atol=1e-6)


class LoudMinority(nn.Module):
    """Class 1 by far where the noise exceeds a quarter deviation (40 %), else class 0 by a little."""

    def forward(self, inputs: Tensor) -> Tensor:
        loud = (inputs[:, :1] - 0.5 > SIGMA / 4).to(inputs.dtype)
        return torch.cat(((1 - loud) * 0.1, loud * 10), dim=1)


def test_predictions_are_votes_and_not_mean_probabilities() -> None:
    network = noisy(nn.Sequential(LoudMinority()), size=1)
    inputs = torch.full((4, 1), 0.5)
    answers = predicted_labels(OwnNoise(network, judged_on=2000), inputs, key=KEY)
    assert answers.tolist() == [0, 0, 0, 0]
    with torch.no_grad(), global_seed(5, CPU):
        planted = network(inputs[:1].expand(2000, 1)).softmax(dim=1).mean(dim=0).argmax()
    assert int(planted) == 1, "the mean probability says something else"


@pytest.mark.parametrize("place", list(Place))
def test_without_noise_is_the_network_with_its_noise_silenced(place: Place) -> None:
    plain = smooth_network()
    network = noisy(plain, place, size=12)
    silent = without_noise(network)
    inputs = torch.rand(6, 12, generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), silenced(network):
        wanted = network(inputs)
    with torch.no_grad():
        assert torch.equal(silent(inputs), wanted)
        assert torch.equal(silent(inputs), plain(inputs))
        assert not torch.equal(network(inputs), network(inputs)), "the network itself still draws"
    assert dict(silent.named_parameters()).keys() == dict(network.named_parameters()).keys(), "names are kept"
    assert all(mine is theirs for mine, theirs in zip(silent.parameters(), network.parameters(), strict=True))
    assert without_noise(plain) is plain


@pytest.mark.parametrize("options", [{"draws": 0}, {"judged_on": 0}, {"most_rows": 0}])
def test_counts_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        OwnNoise(rippled(), **options)
