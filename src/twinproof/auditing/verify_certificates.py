"""The settings that certificates share: sound, naming one proof, not understating the noise, and the rules they give."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import (
    FORMAT,
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
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_method import INPUT, METHOD, NORMS, method_problems, one_of, way_of
from twinproof.auditing.verify_noise import noise_of, noise_problems, slackless_norm_of
from twinproof.auditing.verify_rule import Rule
from twinproof.auditing.verify_run_json import PublicData
from twinproof.rounding import format_down

SETTINGS_FILE = "certificates.json"
MOST_DRAWS = 10**9
MOST_LOOKS = 1000
ROUNDING_UNIT = 1e-6
SLACK = 1e-9
ARITHMETICS = ("float32", "tf32")


def is_grid(value: object) -> bool:
    """A power of two."""
    got = number(value)
    return got is not None and got > 0 and math.frexp(got)[0] == 0.5


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


SMOOTHED = (
    Field("model_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("norm", one_of(NORMS), ", ".join(NORMS)),
    Field("sigma", is_positive, "a positive number"),
    Field("grid", is_grid, "a power of two"),
    Field("levels", is_positive_count, "an integer from 1"),
    Field("dimension", is_positive_count, "an integer from 1"),
    Field("tau", is_not_negative, "a number from 0"),
    Field("n0", is_positive_count, "an integer from 1"),
    Field("n", is_draws, f"an integer from 1 to {MOST_DRAWS}"),
    Field("alpha", is_open_probability, "a number between 0 and 1"),
    Field("key", is_key, "hexadecimal bytes"),
)
"""What records say of a smoothed classifier and of how it was asked, whatever they are about."""
SETTINGS = (
    FORMAT,
    *SMOOTHED,
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
    *METHOD,
)
LOOK = (
    Field("draws", is_draws, f"an integer from 1 to {MOST_DRAWS}"),
    Field("alpha", is_open_probability, "a number between 0 and 1"),
)


def is_sound(settings: dict[str, Any]) -> bool:
    """Whether every field is there and has a value that it can have."""
    return not any(field_problems(SETTINGS_FILE, settings, SETTINGS))


def rules_of(settings: dict[str, Any]) -> tuple[Rule, ...]:
    """The rule of each look that the settings state; none where one of the numbers cannot be used."""
    sound = {f.name: settings[f.name] for f in SETTINGS if f.name in settings and f.accepts(settings[f.name])}
    way = way_of(settings)
    if way is None or not {"sigma", "tau", "looks"} <= sound.keys():
        return ()
    if any(not isinstance(look, dict) or any(field_problems(SETTINGS_FILE, look, LOOK)) for look in sound["looks"]):
        return ()
    sigma, tau = float(sound["sigma"]), float(sound["tau"])
    norm, slack = float(sound["operator_norm"]), float(sound["slack"])
    slackless = slackless_norm_of(settings)
    return tuple(Rule(sigma, tau, look["draws"], float(look["alpha"]), way, norm, slack, slackless) for look in sound["looks"])


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


def settings_problems(settings: dict[str, Any], data: PublicData) -> Iterator[Problem]:
    """The settings on their own, against the data set, and what follows from them."""
    faults = list(_field_problems(settings))
    yield from faults
    here = settings.get("place") == INPUT
    for name, truth in (("levels", data.levels), ("dimension", data.dimension if here else None)):
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
    yield from method_problems(SETTINGS_FILE, settings, data.classes)
    yield from noise_problems(noise_of(SETTINGS_FILE, settings, norm="norm", dimension="dimension"))
    yield from look_problems(settings)
    if rules := rules_of(settings):
        yield from _largest_problems(float(settings["largest_radius"]), rules[-1])


def _field_problems(settings: dict[str, Any]) -> Iterator[Problem]:
    """Fields that are missing or wrong; certificates from before there was more than one method are refused in one sentence."""
    names = [field.name for field in METHOD if not field.optional]
    if any(name in settings for name in names):
        yield from field_problems(SETTINGS_FILE, settings, SETTINGS, closed=True)
        return
    what = "these certificates do not say how they were made, as those of the first version did not"
    yield Problem(SETTINGS_FILE, what, f"no {', '.join(names)}", "certificates of this version; certify again with --overwrite")
    yield from field_problems(SETTINGS_FILE, settings, SETTINGS[: -len(METHOD)])


def _largest_problems(printed: float, rule: Rule) -> Iterator[Problem]:
    """The largest radius against what unanimous draws give; ``rule`` is that of the last look."""
    most = rule.answers(rule.unanimous())
    largest, slack = float(most.radius[0]), float(most.slack[0])
    if not printed <= largest + slack + SLACK:
        yield Problem(SETTINGS_FILE, "largest_radius is above what n unanimous votes give", repr(printed), format_down(largest))
    elif printed < largest - slack - 2 * ROUNDING_UNIT:
        yield Problem(SETTINGS_FILE, "largest_radius is below what n unanimous votes give", repr(printed), format_down(largest))
