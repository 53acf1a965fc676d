"""The attacked certificates of audit.json: the ones that claim something, each once, with flips that their votes prove."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import Field, field_problems, is_count, is_not_negative, is_object, is_positive, number, or_null
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_attacked_inputs import distances, in_units
from twinproof.auditing.verify_attacks import Surroundings
from twinproof.auditing.verify_certificate_lines import ABSTAIN, Lines
from twinproof.auditing.verify_certificates import is_draws
from twinproof.auditing.verify_confidence import CLOPPER_PEARSON, HOEFFDING, lower_bound
from twinproof.auditing.verify_expected import rounded_down
from twinproof.auditing.verify_method import RESOLUTIONS, SCORES, VOTES

FILE = "audit.json"
HELD, UNDECIDED, FLIPPED = "held", "undecided", "flipped"
FOUND_BY = ("input", "ascent", "direction", "walk")
# Confirmations that the false flips of an audit are shared among, for each certificate.
CONFIRMATIONS = 10
# Distances are square roots of integers in float64, and lie on a side of the radius up to their last bits.
FLOAT_SLACK = 1e-12
# Faults that are named one by one.
NAMED = 20


@dataclass(frozen=True)
class Claim:
    """A certificate with an answer and a radius."""

    index: int
    prediction: int
    radius: float


ENTRY = (
    Field("index", is_count, "an integer from 0"),
    Field("prediction", is_count, "a class"),
    Field("radius", is_positive, "a positive number"),
    Field(
        "verdict",
        lambda value: isinstance(value, str) and value in (HELD, UNDECIDED, FLIPPED),
        f"{HELD}, {UNDECIDED} or {FLIPPED}",
    ),
    Field("flip", or_null(is_object), "null or an object"),
)
FLIP = (
    Field("distance", is_not_negative, "a number from 0"),
    Field("ratio", is_not_negative, "a number from 0"),
    Field("prediction", is_count, "a class"),
    Field("votes", is_count, "an integer from 0"),
    Field("draws", is_draws, "a number of draws"),
    Field("found_by", lambda value: isinstance(value, str) and value in FOUND_BY, ", ".join(FOUND_BY)),
    Field("stored", or_null(lambda value: isinstance(value, list)), "null or a list of levels"),
)


def claims_of(lines: Lines | None, inputs: int) -> list[Claim]:
    """Those of the first ``inputs`` certificates that an audit must attack."""
    if lines is None:
        return []
    some = zip(lines.index[:inputs].tolist(), lines.prediction[:inputs].tolist(), lines.radius[:inputs].tolist(), strict=True)
    return [Claim(*one) for one in some if one[1] != ABSTAIN and one[2] > 0]


def entry_problems(section: dict[str, Any], claims: list[Claim] | None, around: Surroundings) -> Iterator[Problem]:
    """The list by itself and against the certificates; without problems each entry and flip has the right fields."""
    attacked: list[Any] = section["attacked"]
    if len(attacked) != section["attackable"]:
        wanted = f"{section['attackable']} (attackable)"
        yield Problem(FILE, "attacked does not hold every certificate that was to be attacked", str(len(attacked)), wanted)
    if claims is not None:
        if section["attackable"] != len(claims):
            what = "attackable is not the number of certificates that claim something"
            yield Problem(FILE, what, str(section["attackable"]), str(len(claims)))
        if around.lines is not None and section["inputs"] > len(around.lines.rows):
            yield Problem(FILE, "inputs is more than were certified", str(section["inputs"]), str(len(around.lines.rows)))
    yield from _few(_form_problems(attacked))
    if claims is not None:
        yield from _few(_claim_problems(attacked, claims))


def _few(problems: Iterator[Problem]) -> Iterator[Problem]:
    """The first ones, so that a broken list does not bury the rest."""
    for at, problem in enumerate(problems):
        if at == NAMED:
            yield Problem(FILE, "attacked: there are more problems of this kind", "not listed", "none")
            return
        yield problem


def _form_problems(attacked: list[Any]) -> Iterator[Problem]:
    for at, entry in enumerate(attacked):
        where = f"attacked[{at}]"
        if not isinstance(entry, dict):
            yield Problem(FILE, f"{where} is no object", shown(entry), "an attacked certificate")
            continue
        yield from field_problems(FILE, entry, ENTRY, where=f"{where}.", closed=True)
        if isinstance(entry.get("flip"), dict):
            yield from field_problems(FILE, entry["flip"], FLIP, where=f"{where}.flip.", closed=True)


def _claim_problems(attacked: list[Any], claims: list[Claim]) -> Iterator[Problem]:
    for at, (entry, claim) in enumerate(zip(attacked, claims, strict=False)):
        got = {name: entry.get(name) for name in ("index", "prediction", "radius")} if isinstance(entry, dict) else entry
        if got != vars(claim):
            yield Problem(FILE, f"attacked[{at}] is not the certificate of certificates.csv", shown(got), shown(vars(claim)))


def flip_problems(section: dict[str, Any], around: Surroundings) -> Iterator[Problem]:
    """Each flip of a list without faults of form: another class, proven by its votes, at the distance that is written."""
    entries = list(enumerate(section["attacked"]))
    yield from _few(problem for at, entry in entries for problem in _verdict_problems(f"attacked[{at}]", entry))
    flipped = [(f"attacked[{at}]", entry) for at, entry in entries if entry["flip"] is not None]
    yield from _few(problem for where, entry in flipped for problem in _flip_problems(where, entry, section, around))
    yield from _few(_vote_problems(flipped, section, around.certificates))


def _verdict_problems(where: str, entry: dict[str, Any]) -> Iterator[Problem]:
    """``flipped`` exactly where the flip lies inside; what was undecided cannot be seen afterwards."""
    flip = entry["flip"]
    inside = flip is not None and flip["distance"] < entry["radius"] * (1 - FLOAT_SLACK)
    if inside != (entry["verdict"] == FLIPPED):
        wanted = FLIPPED if inside else f"{HELD} or {UNDECIDED}: no flip lies inside the radius"
        yield Problem(FILE, f"{where}.verdict does not follow from the flip", entry["verdict"], wanted)
    if flip is not None and inside != (flip["stored"] is not None):
        wanted = "the input, as it contradicts the certificate" if inside else "null: it contradicts nothing"
        yield Problem(FILE, f"{where}.flip.stored does not follow from the distance", shown(flip["stored"]), wanted)


def _flip_problems(where: str, entry: dict[str, Any], section: dict[str, Any], around: Surroundings) -> Iterator[Problem]:
    flip, radius, classes = entry["flip"], float(entry["radius"]), around.data.classes
    distance = float(flip["distance"])
    if flip["prediction"] == entry["prediction"] or (classes is not None and flip["prediction"] >= classes):
        yield Problem(FILE, f"{where}.flip is to no other class", str(flip["prediction"]), f"not {entry['prediction']}")
    ratio = rounded_down(distance / radius)
    if not ratio.low <= flip["ratio"] <= ratio.high:
        yield Problem(
            FILE, f"{where}.flip.ratio is not distance over radius", repr(flip["ratio"]), f"{ratio.value!r}, rounded down"
        )
    if not distance <= radius * section["outward"] * (1 + FLOAT_SLACK):
        yield Problem(FILE, f"{where}.flip is further away than was searched", repr(distance), f"{section['outward']} radii")
    if flip["found_by"] == "input" and distance != 0:
        yield Problem(FILE, f"{where}.flip was found at the input itself, but lies elsewhere", repr(distance), "distance 0")
    if flip["draws"] != section["votes"]:
        yield Problem(
            FILE, f"{where}.flip.draws is not the number of a confirmation", str(flip["draws"]), str(section["votes"])
        )
    if around.data.levels is not None:
        yield from _place_problems(where, entry, section["norm"], around.data.levels, around)


def _place_problems(where: str, entry: dict[str, Any], norm: str, levels: int, around: Surroundings) -> Iterator[Problem]:
    """Stored inputs are whole levels apart (in l2 the root of a whole number of squared levels); the input is storable."""
    flip = entry["flip"]
    distance = float(flip["distance"])
    # A product: a power would raise where this is infinite.
    measured = distance * levels * (distance * levels if norm == "l2" else 1)
    if not (math.isfinite(measured) and abs(measured - round(measured)) <= FLOAT_SLACK * 1e3 * max(1.0, measured)):
        what = f"{where}.flip.distance is none between stored inputs"
        yield Problem(FILE, what, repr(distance), f"{'the root of ' if norm == 'l2' else ''}an integer, over {levels}")
    if flip["stored"] is None or around.data.dimension is None:
        return
    point = _levels(flip["stored"], levels, around.data.dimension)
    if point is None:
        wanted = f"{around.data.dimension} integers from 0 to {levels}"
        yield Problem(FILE, f"{where}.flip.stored is no input", shown(flip["stored"]), wanted)
    elif around.originals is not None and entry["index"] < len(around.originals.inputs):
        original = around.originals.rows(entry["index"], entry["index"] + 1)
        true = float(in_units(distances(point, original, norm), norm, levels)[0])
        if not abs(true - distance) <= FLOAT_SLACK * max(1.0, true):
            yield Problem(FILE, f"{where}.flip.distance is not that of the stored input", repr(distance), repr(true))


def _levels(stored: list[Any], levels: int, dimension: int) -> NDArray[np.int64] | None:
    """One row of levels, or None where the list is none."""
    if len(stored) != dimension or not all(is_count(one) and one <= levels for one in stored):
        return None
    return np.array([stored], dtype=np.int64)


def _vote_problems(
    flipped: list[tuple[str, dict[str, Any]]], section: dict[str, Any], certificates: dict[str, Any]
) -> Iterator[Problem]:
    """Another class has more than half of the probability (or score) there, at the level that all confirmations share."""
    level = section["false_flips"] / (CONFIRMATIONS * max(1, section["attackable"]))
    scores = certificates.get("statistic") == SCORES
    unit = RESOLUTIONS[SCORES if scores else VOTES]
    votes = np.array([entry["flip"]["votes"] for _, entry in flipped], dtype=np.int64)
    draws: int = section["votes"]
    some, most = np.minimum(votes, draws * unit), draws * unit
    bound = lower_bound(HOEFFDING if scores else CLOPPER_PEARSON, some, some, draws, unit, level)
    bound -= number(certificates.get("tau")) or 0.0
    for (where, _), p, count in zip(flipped, bound.tolist(), votes.tolist(), strict=True):
        if count > most or not p > 0.5 - FLOAT_SLACK:
            got = f"{count} of {most} votes: at least {p:.6f}"
            yield Problem(FILE, f"{where}.flip is not proven by its votes", got, f"above one half, at level {level!r}")
