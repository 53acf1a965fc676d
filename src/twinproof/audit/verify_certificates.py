"""The settings that certificates share: sound, not understating the noise, and the rule that turns votes into a radius."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.audit.evidence import shown
from twinproof.audit.fields import (
    ORIGIN,
    Field,
    exactly,
    field_problems,
    is_count,
    is_digest,
    is_not_negative,
    is_open_probability,
    is_positive,
    is_positive_count,
    is_text,
    number,
    or_null,
    whole,
)
from twinproof.audit.verification import Problem
from twinproof.audit.verify_run_json import PublicData
from twinproof.rounding import format_down

SETTINGS_FILE = "certificates.json"
MOST_DRAWS = 10**9
MOST_LOOKS = 1000
ROUNDING_UNIT = 1e-6
# Steps of the grid within one standard deviation for which tau is proven.
FEWEST_STEPS = 64
SLACK = 1e-9
ARITHMETICS = ("float32", "tf32")


def is_grid(value: object) -> bool:
    """A power of two, at most 1."""
    got = number(value)
    return got is not None and 0 < got <= 1 and math.frexp(got)[0] == 0.5


def is_draws(value: object) -> bool:
    """A number of draws that can be recomputed."""
    got = whole(value)
    return got is not None and 1 <= got <= MOST_DRAWS


def is_key(value: object) -> bool:
    """Whole bytes in hexadecimal."""
    return isinstance(value, str) and re.fullmatch(r"([0-9a-f]{2})+", value, re.ASCII) is not None


def is_arithmetic(value: object) -> bool:
    """A precision of products that a network is run in."""
    return isinstance(value, str) and value in ARITHMETICS


SETTINGS = (
    Field("format", exactly(1), "1"),
    Field("model_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("norm", exactly("l2"), "l2"),
    Field("sigma", is_positive, "a positive number"),
    Field("grid", is_grid, "a power of two, at most 1"),
    Field("levels", is_positive_count, "an integer from 1"),
    Field("dimension", is_positive_count, "an integer from 1"),
    Field("tau", is_not_negative, "a number from 0"),
    Field("n0", is_positive_count, "an integer from 1"),
    Field("n", is_draws, f"an integer from 1 to {MOST_DRAWS}"),
    Field("alpha", is_open_probability, "a number between 0 and 1"),
    Field("key", is_key, "hexadecimal bytes"),
    Field("largest_radius", is_not_negative, "a number from 0"),
    Field("inputs", is_count, "an integer from 0"),
    Field("state", exactly("complete"), "complete"),
    *ORIGIN,
    Field("target_radius", or_null(is_positive), "null or a positive number"),
    Field("arithmetic", is_arithmetic, " or ".join(ARITHMETICS)),
    Field("form", is_text, "a description, e.g. as given"),
    Field("shared_noise", lambda value: isinstance(value, bool), "true or false"),
    Field(
        "looks", lambda value: isinstance(value, list) and 0 < len(value) <= MOST_LOOKS, f"a list of 1 to {MOST_LOOKS} looks"
    ),
)
LOOK = (
    Field("draws", is_draws, f"an integer from 1 to {MOST_DRAWS}"),
    Field("alpha", is_open_probability, "a number between 0 and 1"),
)


@dataclass(frozen=True)
class Rule:
    """The numbers that turn the votes of ``n`` draws into a radius; ``alpha`` is the share of the look after these draws."""

    sigma: float
    tau: float
    n: int
    alpha: float

    def radii(self, votes: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For votes within 0..n: the lower bound p on the probability, and the radius (0 where p is at most 1/2)."""
        from scipy.special import betaincinv, ndtri

        distinct, places = np.unique(votes, return_inverse=True)
        successes = np.maximum(distinct, 1).astype(np.float64)
        bound = np.where(distinct > 0, betaincinv(successes, self.n - successes + 1, self.alpha), 0.0)
        p = np.asarray(bound - self.tau, dtype=np.float64)
        radius = np.where(p > 0.5, self.sigma * np.asarray(ndtri(np.clip(p, 0.5, 1.0))), 0.0)
        return p[places], radius[places]


def rules_of(settings: dict[str, Any]) -> tuple[Rule, ...]:
    """The rule of each look that the settings state; none where one of the numbers cannot be used."""
    sound = {f.name: settings[f.name] for f in SETTINGS if f.name in settings and f.accepts(settings[f.name])}
    if not {"sigma", "tau", "looks"} <= sound.keys():
        return ()
    if any(not isinstance(look, dict) or any(field_problems(SETTINGS_FILE, look, LOOK)) for look in sound["looks"]):
        return ()
    sigma, tau = float(sound["sigma"]), float(sound["tau"])
    return tuple(Rule(sigma, tau, look["draws"], float(look["alpha"])) for look in sound["looks"])


def look_problems(settings: dict[str, Any]) -> Iterator[Problem]:
    """Looks of the right form, at growing numbers of draws up to n, that spend no more than alpha in all.

    The union bound needs this, and that the looks were fixed before the draws, which no file can show.
    """
    looks = settings["looks"]
    for at, look in enumerate(looks):
        if not isinstance(look, dict):
            yield Problem(SETTINGS_FILE, f"looks[{at}] is no object", shown(look), "draws and alpha")
        else:
            yield from field_problems(SETTINGS_FILE, look, LOOK, where=f"looks[{at}].", closed=True)
    rules = rules_of(settings)
    if not rules:
        return
    draws = [rule.n for rule in rules]
    if any(later <= earlier for earlier, later in pairwise(draws)):
        yield Problem(SETTINGS_FILE, "the looks do not grow", shown(draws), "growing numbers of draws")
    if draws[-1] != settings["n"]:
        yield Problem(SETTINGS_FILE, "the last look is not at n draws", str(draws[-1]), str(settings["n"]))
    spent = math.fsum(rule.alpha for rule in rules)
    if not spent <= settings["alpha"] * (1 + SLACK):
        yield Problem(SETTINGS_FILE, "the looks spend more than alpha", repr(spent), f"at most {settings['alpha']!r}")
    if settings["target_radius"] is None and len(rules) > 1:
        yield Problem(SETTINGS_FILE, "several looks without a target radius", str(len(rules)), "one look, at n draws")


def smallest_tau(sigma: float, grid: float, levels: int, dimension: int) -> float:
    """The least distance between grid noise and the Gaussian that can be stated (docs/decisions/0002-noise-on-a-grid.md)."""
    return dimension * (17.0 * sigma * levels / grid * 2.0**-64 + 2.0**-49) + 2.0**-36


def settings_problems(settings: dict[str, Any], data: PublicData) -> Iterator[Problem]:
    """The settings on their own, against the data set, and what follows from them."""
    faults = list(field_problems(SETTINGS_FILE, settings, SETTINGS))
    yield from faults
    for name, truth in (("levels", data.levels), ("dimension", data.dimension)):
        said = whole(settings.get(name))
        if said is not None and truth is not None and said != truth:
            yield Problem(SETTINGS_FILE, f"{name} is not the one of the data in run.json", str(said), shown(truth))
    inputs = whole(settings.get("inputs"))
    if inputs is not None and data.test_records is not None and inputs > data.test_records:
        yield Problem(SETTINGS_FILE, "inputs is more than the test set has", str(inputs), f"at most {data.test_records}")
    if faults:
        return
    if settings["arithmetic"] != ARITHMETICS[0] and settings["device"].partition(":")[0] == "cpu":
        yield Problem(SETTINGS_FILE, "a CPU has no such arithmetic", settings["arithmetic"], ARITHMETICS[0])
    yield from look_problems(settings)
    if rules := rules_of(settings):
        yield from _consequence_problems(settings, rules[-1])


def _consequence_problems(settings: dict[str, Any], rule: Rule) -> Iterator[Problem]:
    """What follows from the numbers of sound settings; ``rule`` is that of the last look."""
    coarse = rule.sigma * settings["levels"] / float(settings["grid"])
    if not coarse >= FEWEST_STEPS * (1 - SLACK):
        yield Problem(SETTINGS_FILE, "the noise grid is too coarse", f"{coarse!r} steps for sigma", f"at least {FEWEST_STEPS}")
    least = smallest_tau(rule.sigma, float(settings["grid"]), settings["levels"], settings["dimension"])
    if not rule.tau >= least * (1 - SLACK):
        yield Problem(SETTINGS_FILE, "tau is understated", repr(rule.tau), f"at least {least!r}")
    largest = float(rule.radii(np.array([rule.n]))[1][0])
    printed = float(settings["largest_radius"])
    if not printed <= largest + SLACK * max(1.0, largest):
        yield Problem(SETTINGS_FILE, "largest_radius is above what n unanimous votes give", repr(printed), format_down(largest))
    elif printed < largest - 2 * ROUNDING_UNIT:
        yield Problem(SETTINGS_FILE, "largest_radius is below what n unanimous votes give", repr(printed), format_down(largest))
