"""The two protocols: what each attacks, with what, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from twinproof.attacks.objective import Expectation, OwnNoise, Plain, Smoothed
from twinproof.attacks.search import Keep
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError
from twinproof.evaluation.protocols import (
    DEFAULT_SIZES,
    AttackedClassifiers,
    AttackPlan,
    Entry,
    aimed_classes,
    answers_at_random,
)
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import add_noise

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


class NoisyScores(nn.Module):
    """Fresh noise at every call, in eval mode too."""

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = NETWORK(inputs)
        return scores + 0.1 * torch.randn_like(scores)


@pytest.mark.parametrize("name", ["ifgsm", "mim", "pgd"])
def test_the_papers_steps_are_size_over_steps_and_the_last_point_is_kept(name: str) -> None:
    plan = AttackPlan(attacks=(name,), steps=33, step_size=0.7, paper_steps=4)
    attack = plan.attack(Entry("paper", "network", name, 0.5))
    assert (attack.steps, attack.keep, attack.restarts) == (4, Keep.LAST, 1)
    assert attack.step_length(plan.threat(Entry("paper", "network", name, 0.5))) == 0.125


def test_the_adaptive_attack_keeps_the_best_of_all_starts() -> None:
    plan = AttackPlan(steps=7, restarts=3, draws=5)
    entry = Entry("adaptive", "smoothed", "pgd", 0.5)
    attack = plan.attack(entry)
    assert (attack.steps, attack.restarts, attack.random_start, attack.keep) == (7, 3, True, Keep.BEST)
    assert plan.attack(Entry("adaptive", "smoothed", "fgsm", 0.5)).steps == 1


def test_who_is_attacked() -> None:
    plan = AttackPlan(draws=5)

    def objective(protocol: str, target: str, random_network: bool) -> Any:
        attacked = AttackedClassifiers(NETWORK, smooth(NETWORK, 0.25), random_network)
        return plan.objective(Entry(protocol, target, "pgd", 0.5), attacked)

    assert objective("paper", "network", False) == Plain(NETWORK)
    assert objective("paper", "network", True) == Plain(NETWORK), "the papers attack without the noise"
    assert objective("adaptive", "network", False) == Plain(NETWORK)
    assert objective("adaptive", "network", True) == Expectation(NETWORK, draws=5)
    assert objective("adaptive", "smoothed", True) == Smoothed(NETWORK, 0.25, draws=5)


@pytest.mark.parametrize("place", list(Place))
def test_a_network_with_a_noise_layer_votes_over_its_own_noise(place: Place) -> None:
    """With its noise silenced it is "the network", under both protocols; the smoothed classifier is attacked through it."""
    plan, example = AttackPlan(draws=5), torch.rand(1, 1, 2, 2)
    network = add_noise(
        NETWORK, (1, 2, 2), place, lambda shape: NoiseLayer(shape, Law.GAUSSIAN, 0.3, UniformSpread(shape))
    ).eval()
    attacked = AttackedClassifiers.of(smooth(network, 0.3), example)
    assert not attacked.random
    assert plan.objective(Entry("adaptive", "smoothed", "pgd", 0.5), attacked) == OwnNoise(network, draws=5)
    for protocol in ("paper", "adaptive"):
        found = plan.objective(Entry(protocol, "network", "pgd", 0.5), attacked)
        assert found == Plain(attacked.bare)
        assert not any(isinstance(layer, NoiseLayer) for layer in attacked.bare.modules())
        assert torch.equal(found.model(example), NETWORK(example))


def test_entries_name_every_attack_once() -> None:
    plan = AttackPlan(sizes=(1.0, 0.5))
    names = [entry.name for entry in plan.entries]
    assert plan.sizes == (0.5, 1.0)
    assert len(names) == len(set(names)) == 2 * (2 + 4)
    assert names[:3] == ["paper/network/fgsm/0.5", "paper/network/pgd/0.5", "adaptive/network/fgsm/0.5"]
    assert {norm: AttackPlan(norm=norm).sizes for norm in DEFAULT_SIZES} == DEFAULT_SIZES


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "l3"}, "unknown norm"),
        ({"sizes": (-0.5,)}, "size makes no sense"),
        ({"sizes": (0.0,)}, "size makes no sense"),
        ({"sizes": (float("nan"),)}, "size makes no sense"),
        ({"sizes": (0.5, 0.5)}, "sizes are named twice"),
        ({"attacks": ("cw",)}, "unknown attacks"),
        ({"attacks": ()}, "unknown attacks"),
        ({"attacks": ("pgd", "pgd")}, "attacks are named twice"),
        ({"protocols": ("ours",)}, "unknown protocols"),
        ({"steps": 0}, "steps cannot be used"),
        ({"draws": 0}, "draws cannot be used"),
        ({"paper_steps": 0}, "paper_steps cannot be used"),
        ({"step_size": -1.0}, "step_size cannot"),
        ({"attacks": ("fgsm",), "restarts": 2}, "restarts would be wasted"),
        ({"aim": "wherever"}, "unknown aim"),
        ({"aim": "class:-1"}, "unknown aim"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AttackPlan(**options)


@pytest.mark.parametrize("aim", ["next", "least-likely", "class:2"])
def test_no_input_aims_at_its_own_class(aim: str) -> None:
    inputs, labels = torch.rand(30, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    aims = aimed_classes(aim, NETWORK, inputs, labels, 3)
    assert not bool((aims == labels).any())
    if aim == "least-likely":
        scores = NETWORK(inputs).detach()
        others = [min((c for c in range(3) if c != y), key=lambda c: float(s[c])) for s, y in zip(scores, labels, strict=True)]
        assert aims.tolist() == others
    if aim == "class:2":
        assert aims.tolist() == [2 if label != 2 else 0 for label in labels.tolist()]


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        aimed_classes("class:3", NETWORK, torch.rand(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64), 3)


def test_a_networks_own_noise_is_noticed() -> None:
    example = torch.rand(1, 1, 2, 2)
    before = torch.random.get_rng_state()
    assert not answers_at_random(NETWORK, example)
    assert not answers_at_random(nn.Sequential(NETWORK, nn.Dropout()), example), "dropout is silent in eval mode"
    assert answers_at_random(NoisyScores(), example)
    assert torch.equal(before, torch.random.get_rng_state())
