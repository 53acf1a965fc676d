"""attacks.json without its results: sound settings, about the run's data and its smoothed classifier, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import (
    FORMAT,
    ORIGIN,
    Field,
    exactly,
    field_problems,
    is_object,
    is_positive,
    is_positive_count,
    is_text,
    number,
    or_null,
    whole,
)
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_certificates import SMOOTHED
from twinproof.auditing.verify_method import INPUT, NOISE, NORMS, bound_problems, one_of
from twinproof.auditing.verify_noise import Noise, noise_of, noise_problems
from twinproof.auditing.verify_rule import Rule, Way
from twinproof.auditing.verify_run_json import PublicData

FILE = "attacks.json"
ATTACKS = ("fgsm", "ifgsm", "mim", "pgd")
# What the gradients of each protocol come from, in the order of the lines.
TARGETS = {"paper": ("network",), "adaptive": ("network", "smoothed")}
MOST_SIZES = 1000
# Keys here, and what they must agree with in certificates.json: another one is another smoothed classifier, or other radii.
REPEATED = {"sigma": "sigma", "certificate_norm": "norm", "law": "law", "place": "place", "bound": "bound"}
_AIM = re.compile(r"next|least-likely|class:(0|[1-9][0-9]{0,8})", re.ASCII)


def size_text(size: float) -> str:
    """A size as attacks.csv and the names of the tensors write it."""
    return format(size, ".12g")


def _is_sizes(value: object) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_SIZES or not all(map(is_positive, value)):
        return False
    grows = all(earlier < later for earlier, later in pairwise(value))
    return grows and all(float(size_text(float(size))) == size for size in value)


def _is_choice(value: object, known: tuple[str, ...]) -> bool:
    """A list of different words out of ``known``, not empty."""
    texts = isinstance(value, list) and bool(value) and all(isinstance(one, str) and one in known for one in value)
    return texts and isinstance(value, list) and len(set(value)) == len(value)


SETTINGS = (
    FORMAT,
    Field("state", exactly("complete"), "complete"),
    *SMOOTHED,
    Field("sizes", _is_sizes, "growing positive sizes of at most 12 significant digits"),
    Field("attacks", lambda value: _is_choice(value, ATTACKS), ", ".join(ATTACKS)),
    Field("protocols", lambda value: _is_choice(value, tuple(TARGETS)), ", ".join(TARGETS)),
    Field("steps", is_positive_count, "an integer from 1"),
    Field("step_size", or_null(is_positive), "null or a positive number"),
    Field("restarts", is_positive_count, "an integer from 1"),
    Field("draws", is_positive_count, "an integer from 1"),
    Field("paper_steps", is_positive_count, "an integer from 1"),
    Field(
        "aim",
        or_null(lambda value: isinstance(value, str) and _AIM.fullmatch(value) is not None),
        "null, next, least-likely or class:N",
    ),
    Field("inputs", is_positive_count, "an integer from 1"),
    Field("certificate_norm", one_of(NORMS), ", ".join(NORMS)),
    *NOISE,
    Field("noise_dimension", is_positive_count, "an integer from 1"),
    Field("random_network", lambda value: isinstance(value, bool), "true or false"),
    Field("form", is_text, "a description, e.g. as given"),
    *ORIGIN,
    Field("results", is_object, "an object"),
)


def is_sound_attack(settings: dict[str, Any]) -> bool:
    """Whether every field is there with a value that it can have, and the bound is one for the law of the noise."""
    return not any(field_problems(FILE, settings, SETTINGS)) and not any(bound_problems(FILE, settings))


@dataclass(frozen=True)
class Entry:
    """One attack of one size under one protocol: as many lines as there are inputs, and one tensor."""

    protocol: str
    target: str
    attack: str
    size: float

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return f"{self.protocol}/{self.target}/{self.attack}/{size_text(self.size)}"


CLEAN = Entry("clean", "none", "none", 0.0)


def entries_of(settings: dict[str, Any]) -> tuple[Entry, ...]:
    """The entries that sound settings ask for, in the order of their lines."""
    return tuple(
        Entry(protocol, target, attack, float(size))
        for size in settings["sizes"]
        for protocol in settings["protocols"]
        for attack in settings["attacks"]
        for target in TARGETS[protocol]
    )


def attack_noise(settings: dict[str, Any]) -> Noise:
    """The noise of the smoothed classifier that sound settings describe."""
    return noise_of(FILE, settings, norm="certificate_norm", dimension="noise_dimension")


def answer_rule(settings: dict[str, Any]) -> Rule:
    """How votes at an attacked input become a radius: one look after n draws, with the law and bound of the certificates."""
    noise = attack_noise(settings)
    way = Way(law=noise.law, bound=noise.bound)
    norms = (noise.operator_norm, noise.slack, noise.slackless_norm)
    return Rule(noise.sigma, noise.tau, settings["n"], float(settings["alpha"]), way, *norms)


def setting_problems(
    settings: dict[str, Any], data: PublicData, run: dict[str, Any], certificates: dict[str, Any]
) -> Iterator[Problem]:
    """The settings by themselves, and against the data, the weights' noise and the certificates."""
    faults = list(field_problems(FILE, settings, SETTINGS, closed=True))
    yield from faults
    same = settings.get("place") == INPUT
    for name, truth in (
        ("levels", data.levels),
        ("dimension", data.dimension),
        ("noise_dimension", data.dimension if same else None),
    ):
        said = whole(settings.get(name))
        if said is not None and truth is not None and said != truth:
            yield Problem(FILE, f"{name} is not the one of the data in run.json", str(said), shown(truth))
    inputs = whole(settings.get("inputs"))
    if inputs is not None and data.test_records is not None and inputs > data.test_records:
        yield Problem(FILE, "inputs is more than the test set has", str(inputs), f"at most {data.test_records}")
    if certificates:
        yield from _stale_problems(settings, certificates)
    else:
        yield from _sigma_problems(settings, run)
    if not faults:
        yield from bound_problems(FILE, settings)
        yield from noise_problems(attack_noise(settings))


def _stale_problems(settings: dict[str, Any], certificates: dict[str, Any]) -> Iterator[Problem]:
    """Attacks on another smoothed classifier say nothing about the one that is certified now."""
    for name, theirs in REPEATED.items():
        said, wanted = settings.get(name), certificates.get(theirs)
        if said is not None and wanted is not None and said != wanted:
            what = "stale: another smoothed classifier was attacked than the one of the run"
            fix = f"{theirs} {shown(wanted)} (certificates.json); attack again with --overwrite"
            yield Problem(FILE, what, f"{name} {shown(said)}", fix)


def _sigma_problems(settings: dict[str, Any], run: dict[str, Any]) -> Iterator[Problem]:
    """Without certificates it is the run's own sigma; that of a noise layer is in the weights, and is checked with these.

    A network that its owner gave with a noise layer has none in the config.
    """
    config = run.get("config")
    if not isinstance(config, dict) or config.get("noise_layer") is not None or settings.get("place") != INPUT:
        return
    own, said = number(config.get("sigma")), number(settings.get("sigma"))
    if said is not None and own is not None and said != own:
        what = "stale: another smoothed classifier was attacked than the one of the run"
        yield Problem(FILE, what, f"sigma {said!r}", f"sigma {own!r} (config); attack again with --overwrite")
