"""attacks.json without its results: sound settings, about the run's data and its smoothed classifier, and what they ask for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from twinproof.audit.evidence import shown
from twinproof.audit.fields import (
    ORIGIN,
    Field,
    exactly,
    field_problems,
    is_digest,
    is_object,
    is_open_probability,
    is_positive,
    is_positive_count,
    is_text,
    number,
    or_null,
    whole,
)
from twinproof.audit.verification import Problem
from twinproof.audit.verify_certificates import FEWEST_STEPS, MOST_DRAWS, Rule, is_draws, is_key, smallest_tau
from twinproof.audit.verify_run_json import PublicData

FILE = "attacks.json"
NORMS = ("l2", "linf", "l1")
ATTACKS = ("fgsm", "ifgsm", "mim", "pgd")
# What the gradients of each protocol come from, in the order of the lines.
TARGETS = {"paper": ("network",), "adaptive": ("network", "smoothed")}
MOST_SIZES = 1000
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
    Field("format", exactly(1), "1"),
    Field("state", exactly("complete"), "complete"),
    Field("model_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("norm", lambda value: isinstance(value, str) and value in NORMS, ", ".join(NORMS)),
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
    Field("sigma", is_positive, "a positive number"),
    Field("levels", is_positive_count, "an integer from 1"),
    Field("dimension", is_positive_count, "an integer from 1"),
    Field("n0", is_positive_count, "an integer from 1"),
    Field("n", is_draws, f"an integer from 1 to {MOST_DRAWS}"),
    Field("alpha", is_open_probability, "a number between 0 and 1"),
    Field("key", is_key, "hexadecimal bytes"),
    Field("random_network", lambda value: isinstance(value, bool), "true or false"),
    Field("form", is_text, "a description, e.g. as given"),
    *ORIGIN,
    Field("results", is_object, "an object"),
)


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


def answer_rule(settings: dict[str, Any]) -> Rule:
    """How votes at an attacked input become a radius: one look after n draws, on the coarsest grid that is allowed.

    attacks.json names no grid. The coarsest one has the smallest tau, so that no radius is called too large unjustly.
    """
    sigma, levels = float(settings["sigma"]), settings["levels"]
    steps = sigma * levels / FEWEST_STEPS
    grid = math.ldexp(0.5, math.frexp(steps)[1]) if 0 < steps < 1 else 1.0
    return Rule(sigma, smallest_tau(sigma, grid, levels, settings["dimension"]), settings["n"], float(settings["alpha"]))


def setting_problems(
    settings: dict[str, Any], data: PublicData, run: dict[str, Any], certificates: dict[str, Any]
) -> Iterator[Problem]:
    """The settings by themselves, and against the data, the weights' noise and the certificates."""
    yield from field_problems(FILE, settings, SETTINGS, closed=True)
    for name, truth in (("levels", data.levels), ("dimension", data.dimension)):
        said = whole(settings.get(name))
        if said is not None and truth is not None and said != truth:
            yield Problem(FILE, f"{name} is not the one of the data in run.json", str(said), shown(truth))
    inputs = whole(settings.get("inputs"))
    if inputs is not None and data.test_records is not None and inputs > data.test_records:
        yield Problem(FILE, "inputs is more than the test set has", str(inputs), f"at most {data.test_records}")
    yield from _sigma_problems(settings, run, certificates)


def _sigma_problems(settings: dict[str, Any], run: dict[str, Any], certificates: dict[str, Any]) -> Iterator[Problem]:
    """Another sigma is another smoothed classifier: its attacks say nothing about the one that is certified now."""
    config = run.get("config")
    own = number(config.get("sigma")) if isinstance(config, dict) else None
    wanted = number(certificates.get("sigma")) if certificates else own
    said = number(settings.get("sigma"))
    if said is not None and wanted is not None and said != wanted:
        whose = "certificates.json" if certificates else "config"
        what = "stale: another smoothed classifier was attacked than the one of the run"
        yield Problem(FILE, what, f"sigma {said!r}", f"sigma {wanted!r} ({whose}); attack again with --overwrite")
