"""The two ways to evaluate under attack: the papers' and ours.

``paper`` is what the published tables rest on: inputs crafted on the network without its noise, from the true labels, with
the last point kept, and then shown to everything. ``adaptive`` attacks what will be deployed: the smoothed classifier in
expectation over its noise and the network itself (in expectation, where it is random), keeps the strongest point of every
start, and counts for each input the worst of all attacks together. Of a network with a noise layer, "the network itself" is
the one with that layer silenced, under both protocols: with its noise it is the smoothed classifier.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from twinproof import checks
from twinproof.attacks.objective import Expectation, Objective, OwnNoise, Plain, Smoothed, without_noise
from twinproof.attacks.search import METHODS, Attack, Keep, attack_named, attack_names
from twinproof.attacks.threat import Threat
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.errors import ConfigError
from twinproof.layers.module_state import evaluation_mode
from twinproof.layers.noise import NoiseLayer
from twinproof.layers.noise_placement import split_at_noise, split_at_two_noises

_ROWS = 1024


def aimed_classes(aim: str, model: nn.Module, inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The class that each input is to be taken for; ``aim`` is one that ``AttackPlan`` accepts.

    No input aims at its true class.
    """
    following = (labels + 1) % classes
    if aim == "next":
        return following
    if aim == "least-likely":
        with evaluation_mode(model), torch.no_grad():
            scores = torch.cat([model(inputs[first : first + _ROWS]) for first in range(0, len(inputs), _ROWS)])
        return scores.scatter(1, labels.unsqueeze(1), torch.inf).argmin(dim=1)
    chosen = int(aim.partition(":")[2])
    if chosen >= classes:
        raise ConfigError(
            "the class to aim at does not exist", where="target class", got=chosen, wanted=f"0..{classes - 1}, as in the data"
        )
    return torch.where(labels == chosen, following, chosen)


_COPIES = 8
# Far above what the order of a device's sums changes, far below what a noise layer does.
_TOLERANCE = 1e-4


def answers_at_random(model: nn.Module, example: Tensor) -> bool:
    """Whether copies of one input in one batch, or the same batch again, get different scores in eval mode."""
    batch = example[:1].expand(_COPIES, *example.shape[1:])
    with evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[example.device] if example.is_cuda else []):
        first, again = model(batch), model(batch)
    scale = max(1.0, float(first.abs().nan_to_num().max()))
    spread = torch.maximum((first - first[:1]).abs(), (first - again).abs()).nan_to_num()
    return float(spread.max()) > _TOLERANCE * scale


@dataclass(frozen=True)
class AttackedClassifiers:
    """``bare`` is the network by itself, with a noise layer silenced; ``smoothed`` is what the certificates are about.

    ``random`` says whether the bare network still answers at random (by layers that draw and are no noise layer), so that it
    must be attacked in expectation.
    """

    bare: nn.Module
    smoothed: SmoothedClassifier
    random: bool

    @classmethod
    def of(cls, smoothed: SmoothedClassifier, example: Tensor) -> AttackedClassifiers:
        """Both, from the smoothed one; ``example`` is a batch of one input in [0, 1]."""
        bare = without_noise(smoothed.model)
        return cls(bare, smoothed, answers_at_random(bare, example))

    @property
    def blind(self) -> Objective:
        """The network as the papers attack it: through one look, and without its noise."""
        return Plain(self.bare)

    def network(self, draws: int) -> Objective:
        return Expectation(self.bare, draws=draws) if self.random else self.blind

    def voting(self, draws: int) -> Objective:
        """The smoothed classifier, through ``draws`` noise draws for each gradient."""
        return smoothed_objective(self.smoothed, draws)


def smoothed_objective(smoothed: SmoothedClassifier, draws: int) -> Objective:
    """A smoothed classifier to attack in expectation over its noise, wherever that is added.

    The noise of the gradients has the law and the deviation of the noise that is certified (in floats, off its grid).
    """
    if split_at_two_noises(smoothed.model) is not None:
        return OwnNoise(smoothed.model, draws=draws)  # certified with the scales that its layers have, and no others
    split = split_at_noise(smoothed.model) if smoothed.own_noise else None
    if split is None:
        return Smoothed(smoothed.model, smoothed.noise.sigma, draws=draws)
    if float(split.noise.deviation) == smoothed.noise.sigma:
        return OwnNoise(smoothed.model, draws=draws)
    # Certified at another deviation than the layer was trained with: a copy, as the classifier's own network must not change.
    network = copy.deepcopy(smoothed.model)
    for layer in network.modules():
        if isinstance(layer, NoiseLayer):
            layer.set_deviation(smoothed.noise.sigma)
    return OwnNoise(network, draws=draws)


DEFAULT_SIZES: dict[str, tuple[float, ...]] = {
    "l2": (0.25, 0.5, 0.75, 1.0),
    "linf": (0.05, 0.1, 0.2, 0.3),
    "l1": (0.5, 1.0, 2.0, 4.0),
}
LARGEST_SIZE = 40_000
"""In input units ([0, 1]): the square of this length, in levels, is still a 64-bit number."""
RULES = ("next", "least-likely")
_ITERATED = ("ifgsm", "mim", "pgd")


class Protocol(StrEnum):
    """How attacked inputs are made and counted."""

    PAPER = "paper"
    ADAPTIVE = "adaptive"


class Target(StrEnum):
    """What an attack's gradients come from."""

    NETWORK = "network"
    SMOOTHED = "smoothed"


NO_ATTACK = "none"


def size_name(size: float) -> str:
    """An attack size as the text that keys tables, tensors and JSON: ``0``, ``0.25``, ``1``."""
    return format(size, ".12g")


@dataclass(frozen=True)
class Entry:
    """One attack of one size under one protocol; the unit in which work is done and recorded."""

    protocol: str
    target: str
    attack: str
    size: float

    @property
    def name(self) -> str:
        """``adaptive/smoothed/pgd/0.25``."""
        return "/".join((self.protocol, self.target, self.attack, size_name(self.size)))


CLEAN = Entry("clean", NO_ATTACK, NO_ATTACK, 0.0)
"""The inputs as they are, judged like all the others."""


@dataclass(frozen=True)
class AttackPlan:
    """Which attacks, in which norm and sizes (in input units), and how hard they try.

    ``steps``, ``step_size``, ``restarts`` (of ``pgd``, the one with random starts) and ``draws`` (noise draws for each
    gradient) are those of the adaptive protocol. The papers' steps are ``paper_steps``, each of size / paper_steps. ``aim``
    makes attacks targeted: ``next`` (the class after the true one), ``least-likely`` (the network's last choice) or
    ``class:N`` (inputs of class N itself aim at the next one).
    """

    norm: str = "l2"
    sizes: tuple[float, ...] = ()
    attacks: tuple[str, ...] = ("fgsm", "pgd")
    protocols: tuple[str, ...] = (Protocol.PAPER, Protocol.ADAPTIVE)
    steps: int = 20
    step_size: float | None = None
    restarts: int = 1
    draws: int = 8
    paper_steps: int = 10
    aim: str | None = None

    def __post_init__(self) -> None:
        if self.norm not in DEFAULT_SIZES:
            raise ConfigError("unknown norm", where="norm", got=self.norm, wanted=", ".join(DEFAULT_SIZES))
        sizes = tuple(sorted(_checked_size(size) for size in self.sizes or DEFAULT_SIZES[self.norm]))
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "protocols", tuple(str(protocol) for protocol in self.protocols))
        for name, known in (("attacks", attack_names()), ("protocols", tuple(Protocol))):
            _refuse_unknown(name, getattr(self, name), known)
        for name in ("sizes", "attacks", "protocols"):
            _refuse_repeats(name, getattr(self, name))
        checks.whole(1, steps=self.steps, restarts=self.restarts, draws=self.draws, paper_steps=self.paper_steps)
        if self.restarts > 1 and "pgd" not in self.attacks:
            raise ConfigError(
                "restarts would be wasted",
                where="restarts",
                got=f"{self.restarts} with {', '.join(self.attacks)}",
                wanted="an attack with random starts",
                fix="add pgd, or leave restarts out",
            )
        check_aim(self.aim)
        for entry in self.entries:
            self.attack(entry)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every attack of the plan, in the order in which they are made."""
        targets = {Protocol.PAPER: (Target.NETWORK,), Protocol.ADAPTIVE: (Target.NETWORK, Target.SMOOTHED)}
        return tuple(
            Entry(protocol, str(target), attack, size)
            for size in self.sizes
            for protocol in self.protocols
            for attack in self.attacks
            for target in targets[Protocol(protocol)]
        )

    def threat(self, entry: Entry) -> Threat:
        """What the attacker may do: inputs are stored in [0, 1]."""
        return Threat(self.norm, entry.size)

    def attack(self, entry: Entry) -> Attack:
        """The method of ``entry``, as its protocol wants it."""
        iterated = entry.attack in _ITERATED or entry.attack not in METHODS
        if entry.protocol == Protocol.PAPER:
            stepping = {"steps": self.paper_steps, "step_size": entry.size / self.paper_steps} if iterated else {}
            return attack_named(entry.attack, **stepping, keep=Keep.LAST)
        options: dict[str, Any] = {"steps": self.steps, "step_size": self.step_size} if iterated else {}
        if entry.attack == "pgd":
            options["restarts"] = self.restarts
        return attack_named(entry.attack, **options, keep=Keep.BEST)

    def objective(self, entry: Entry, attacked: AttackedClassifiers) -> Objective:
        """What the attack of ``entry`` raises; the papers' sees no noise."""
        if entry.target == Target.SMOOTHED:
            return attacked.voting(self.draws)
        return attacked.network(self.draws) if entry.protocol == Protocol.ADAPTIVE else attacked.blind


def check_aim(aim: str | None) -> None:
    if aim is None or aim in RULES:
        return
    kind, _, number = aim.partition(":")
    if kind != "class" or not number.isdecimal():
        raise ConfigError("unknown aim of a targeted attack", where="aim", got=aim, wanted=f"{', '.join(RULES)} or class:N")


def _checked_size(size: float) -> float:
    if not 0 < size <= LARGEST_SIZE:
        raise ConfigError(
            "an attack of this size makes no sense",
            where="size",
            got=size,
            wanted=f"above 0 and at most {LARGEST_SIZE:,}, in input units; size 0, the inputs as they are, is always judged",
        )
    return float(size_name(size))


def _refuse_unknown(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    strangers = [one for one in given if one not in known]
    if strangers or not given:
        raise ConfigError(f"unknown {name}", where=name, got=", ".join(strangers) or "none", wanted=", ".join(known))


def _refuse_repeats(name: str, given: tuple[object, ...]) -> None:
    if len(set(given)) != len(given):
        raise ConfigError(f"{name} are named twice", where=name, got=", ".join(map(str, given)), wanted="each of them once")
