"""audit.json: the audit is of the certificates that are there, each flip is proven by its votes, and the verdict follows.

What cannot be seen here: whether the attacks were really made, or whether a flip was found and not written down. An audit
passes only if the digests that it names are those of the present certificates and weights, and if the promise in run.json is
``refuted`` exactly where the audit refutes it or where it rests on a bound that is known to be false.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from twinproof_verify import models
from twinproof_verify.attack_results import distances, in_units
from twinproof_verify.bounds import CLOPPER_PEARSON, HOEFFDING, PUBLISHED, lower_bound
from twinproof_verify.certificate_lines import ABSTAIN, Lines
from twinproof_verify.certificates import NORMS, RESOLUTIONS, SCORES, VOTES, Arithmetic, NormName
from twinproof_verify.evidence import RunFolder, sha256, shown
from twinproof_verify.files import AUDIT, CERTIFICATES, MODEL, RUN_JSON
from twinproof_verify.findings import Problem
from twinproof_verify.models import Origin, Record, block, differences, exact, number, rounded_down, rounded_up, special
from twinproof_verify.sentences import REFUTED_BELOW

if TYPE_CHECKING:
    from twinproof_verify.inspection import Inspection

FILE = AUDIT.json
BINOMIAL, MARKOV = "binomial", "markov"
HELD, UNDECIDED, FLIPPED = "held", "undecided", "flipped"
# Confirmations that the false flips of an audit are shared among, for each certificate.
CONFIRMATIONS = 10
# Distances are square roots of integers in float64, and lie on a side of the radius up to their last bits.
FLOAT_SLACK = 1e-12
# Faults that are named one by one.
NAMED = 20
# What each digest is of.
_BINDS = {"certificates_sha256": CERTIFICATES.csv, "settings_sha256": CERTIFICATES.json, "model_sha256": MODEL}


class Flip(Record):
    """An input where the smoothed classifier answers otherwise; ``stored`` if it lies inside the radius."""

    distance: models.NotNegative
    ratio: models.NotNegative
    prediction: models.Count
    votes: models.Count
    draws: models.Draws
    found_by: Literal["input", "ascent", "direction", "walk"]
    stored: list[Any] | None


class Attacked(Record):
    """One certificate that was attacked."""

    index: models.Count
    prediction: models.Count
    radius: models.Positive
    verdict: Literal["held", "undecided", "flipped"]
    flip: Flip | None


class CertificateAudit(Origin):
    """``certificates`` of audit.json."""

    state: Literal["complete"]
    certificates_sha256: models.Digest
    settings_sha256: models.Digest
    model_sha256: models.Digest
    norm: NormName
    inputs: models.PositiveCount
    attackable: models.Count
    within: models.Rate
    outward: models.Positive
    steps: models.Count
    draws: models.PositiveCount
    restarts: models.Count
    directions: models.Count
    rounds: models.Count
    screen: models.PositiveCount
    votes: models.Draws
    # More than this would let an audit excuse its own flips.
    false_flips: Annotated[float, Field(gt=0, le=1e-6)]
    key: models.KeyText
    form: models.Text
    arithmetic: Arithmetic
    attacked: list[Attacked]
    verdict: dict[str, Any]


class AuditFile(Record):
    """audit.json."""

    format: models.Format
    certificates: CertificateAudit


def stale_problems(folder: RunFolder, section: dict[str, Any]) -> Iterator[Problem]:
    """Whether the audit is of the certificates and the weights that are in the run now."""
    for name, file in _BINDS.items():
        content = folder.content(file)
        truth = content.what if isinstance(content, Problem) else sha256(content)
        if section.get(name) != truth:
            what = f"stale: {name} is not the digest of {file}"
            yield Problem(FILE, what, shown(section.get(name)), f"{truth}; audit the run again with --overwrite")


def audit_problems(audit: CertificateAudit, seen: Inspection, *, stale: bool) -> Iterator[Problem]:
    """Flips and verdict of sound settings; an audit of other certificates (``stale``) is only checked by itself."""
    certificates = {} if stale else seen.certificates
    if certificates and audit.key == certificates.get("key"):
        yield Problem(FILE, "the noise that judged is the certificates' own", "the key of certificates.json", "another key")
    certified = certificates.get("norm")
    if certified in NORMS and audit.norm != certified:
        yield Problem(FILE, "norm is not that of the certificates", audit.norm, shown(certified))
    faults = list(_list_problems(audit, seen.lines, stale=stale))
    yield from faults
    if faults:
        return
    entries = [(f"attacked[{at}]", entry) for at, entry in enumerate(audit.attacked)]
    yield from _few(problem for where, entry in entries for problem in _verdict_problems(where, entry))
    flipped = [(where, entry, entry.flip) for where, entry in entries if entry.flip is not None]
    yield from _few(problem for where, entry, flip in flipped for problem in _flip_problems(where, entry, flip, audit, seen))
    yield from _few(_vote_problems([(where, flip) for where, _, flip in flipped], audit, seen.certificates))
    yield from _total_problems(audit, certificates)


def _few(problems: Iterator[Problem]) -> Iterator[Problem]:
    """The first ones, so that a broken list does not bury the rest."""
    for at, problem in enumerate(problems):
        if at == NAMED:
            yield Problem(FILE, "attacked: there are more problems of this kind", "not listed", "none")
            return
        yield problem


def _list_problems(audit: CertificateAudit, lines: Lines | None, *, stale: bool) -> Iterator[Problem]:
    """The list by itself and against the certificates, each of which with an answer and a radius must be there once."""
    attacked = audit.attacked
    if len(attacked) != audit.attackable:
        what, wanted = "attacked does not hold every certificate that was to be attacked", f"{audit.attackable} (attackable)"
        yield Problem(FILE, what, str(len(attacked)), wanted)
    if stale:
        return
    claims: list[tuple[int, int, float]] = []
    if lines is not None:
        some = (column[: audit.inputs].tolist() for column in (lines.index, lines.prediction, lines.radius))
        claims = [one for one in zip(*some, strict=True) if one[1] != ABSTAIN and one[2] > 0]
    if audit.attackable != len(claims):
        what = "attackable is not the number of certificates that claim something"
        yield Problem(FILE, what, str(audit.attackable), str(len(claims)))
    if lines is not None and audit.inputs > len(lines.rows):
        yield Problem(FILE, "inputs is more than were certified", str(audit.inputs), str(len(lines.rows)))
    what = "is not the certificate of certificates.csv"
    yield from _few(
        Problem(FILE, f"attacked[{at}] {what}", shown([one.index, one.prediction, one.radius]), shown(list(claim)))
        for at, (one, claim) in enumerate(zip(attacked, claims, strict=False))
        if (one.index, one.prediction, one.radius) != claim
    )


def _verdict_problems(where: str, entry: Attacked) -> Iterator[Problem]:
    """``flipped`` exactly where the flip lies inside; what was undecided cannot be seen afterwards."""
    flip = entry.flip
    inside = flip is not None and flip.distance < entry.radius * (1 - FLOAT_SLACK)
    if inside != (entry.verdict == FLIPPED):
        wanted = FLIPPED if inside else f"{HELD} or {UNDECIDED}: no flip lies inside the radius"
        yield Problem(FILE, f"{where}.verdict does not follow from the flip", entry.verdict, wanted)
    if flip is not None and inside != (flip.stored is not None):
        wanted = "the input, as it contradicts the certificate" if inside else "null: it contradicts nothing"
        yield Problem(FILE, f"{where}.flip.stored does not follow from the distance", shown(flip.stored), wanted)


def _flip_problems(where: str, entry: Attacked, flip: Flip, audit: CertificateAudit, seen: Inspection) -> Iterator[Problem]:
    """Another class, at the distance that is written, within what was searched."""
    classes, distance = seen.data.classes, flip.distance
    if flip.prediction == entry.prediction or (classes is not None and flip.prediction >= classes):
        yield Problem(FILE, f"{where}.flip is to no other class", str(flip.prediction), f"not {entry.prediction}")
    ratio = rounded_down(distance / entry.radius)
    if not ratio.low <= flip.ratio <= ratio.high:
        what, wanted = f"{where}.flip.ratio is not distance over radius", f"{ratio.value!r}, rounded down"
        yield Problem(FILE, what, repr(flip.ratio), wanted)
    if not distance <= entry.radius * audit.outward * (1 + FLOAT_SLACK):
        yield Problem(FILE, f"{where}.flip is further away than was searched", repr(distance), f"{audit.outward} radii")
    if flip.found_by == "input" and distance != 0:
        yield Problem(FILE, f"{where}.flip was found at the input itself, but lies elsewhere", repr(distance), "distance 0")
    if flip.draws != audit.votes:
        yield Problem(FILE, f"{where}.flip.draws is not the number of a confirmation", str(flip.draws), str(audit.votes))
    if seen.data.levels is not None:
        yield from _place_problems(where, entry.index, flip, audit.norm, seen.data.levels, seen)


def _place_problems(where: str, index: int, flip: Flip, norm: str, levels: int, seen: Inspection) -> Iterator[Problem]:
    """Stored inputs are whole levels apart (in l2 the root of a whole number of squared levels); the input is storable."""
    distance, dimension = flip.distance, seen.data.dimension
    # A product: a power would raise where this is infinite.
    measured = distance * levels * (distance * levels if norm == "l2" else 1)
    if not (math.isfinite(measured) and abs(measured - round(measured)) <= FLOAT_SLACK * 1e3 * max(1.0, measured)):
        what = f"{where}.flip.distance is none between stored inputs"
        yield Problem(FILE, what, repr(distance), f"{'the root of ' if norm == 'l2' else ''}an integer, over {levels}")
    if flip.stored is None or dimension is None:
        return
    if len(flip.stored) != dimension or not all(type(one) is int and 0 <= one <= levels for one in flip.stored):
        wanted = f"{dimension} integers from 0 to {levels}"
        yield Problem(FILE, f"{where}.flip.stored is no input", shown(flip.stored), wanted)
    elif seen.originals is not None and index < len(seen.originals.inputs):
        point: NDArray[np.int64] = np.array([flip.stored], dtype=np.int64)
        true = float(in_units(distances(point, seen.originals.rows(index, index + 1), norm), norm, levels)[0])
        if not abs(true - distance) <= FLOAT_SLACK * max(1.0, true):
            yield Problem(FILE, f"{where}.flip.distance is not that of the stored input", repr(distance), repr(true))


def _vote_problems(flips: list[tuple[str, Flip]], audit: CertificateAudit, certificates: dict[str, Any]) -> Iterator[Problem]:
    """Another class has more than half of the probability (or score) there, at the level that all confirmations share."""
    level = audit.false_flips / (CONFIRMATIONS * max(1, audit.attackable))
    scores = certificates.get("statistic") == SCORES
    unit = RESOLUTIONS[SCORES if scores else VOTES]
    most = audit.votes * unit
    some = np.array([min(flip.votes, most) for _, flip in flips], dtype=np.int64)
    bound = lower_bound(HOEFFDING if scores else CLOPPER_PEARSON, some, some, audit.votes, unit, level)
    bound -= number(certificates.get("tau")) or 0.0
    for (where, flip), p in zip(flips, bound.tolist(), strict=True):
        if flip.votes > most or not p > 0.5 - FLOAT_SLACK:
            got = f"{flip.votes} of {most} votes: at least {p:.6f}"
            yield Problem(FILE, f"{where}.flip is not proven by its votes", got, f"above one half, at level {level!r}")


def _total_problems(audit: CertificateAudit, certificates: dict[str, Any]) -> Iterator[Problem]:
    """Every value of the verdict that the list of sound entries does not give.

    Where the certificates that were attacked are gone, alpha and the bound are taken as the verdict states them.
    """
    alpha = number((certificates or audit.verdict).get("alpha"))
    if alpha is None or not 0 < alpha < 1:
        yield Problem(FILE, "the verdict cannot be checked without alpha", "no usable alpha", "a number between 0 and 1")
        return
    shared = certificates.get("shared_noise") is True if certificates else audit.verdict.get("bound") == MARKOV
    for path, got, wanted in differences(audit.verdict, _expected(audit, alpha, shared=shared), "verdict"):
        yield Problem(FILE, f"{path} does not follow from the attacked certificates", got, wanted)


def _expected(audit: CertificateAudit, alpha: float, *, shared: bool) -> dict[str, Any]:
    attacked, inputs = audit.attacked, audit.inputs
    flips = sum(entry.verdict == FLIPPED for entry in attacked)
    ratios = [entry.flip.ratio for entry in attacked if entry.flip is not None]
    chance = probability_of(flips, inputs, alpha, shared=shared)
    refuted = flips > 0 and chance + audit.false_flips < REFUTED_BELOW
    return {
        "inputs": inputs,
        "attacked": len(attacked),
        "flips": flips,
        "undecided": sum(entry.verdict == UNDECIDED for entry in attacked),
        "alpha": exact(alpha),
        "expected": rounded_up(inputs * alpha),
        "bound": MARKOV if shared else BINOMIAL,
        "probability": special(chance),
        "refuted": refuted,
        "closest": exact(min(ratios)) if ratios else None,
        "median": rounded_down(statistics.median(ratios)) if ratios else None,
        "beyond_reach": len(attacked) - len(ratios),
        "verdict": ("refuted" if refuted else "not refuted") if attacked else "nothing to attack",
    }


def probability_of(flips: int, inputs: int, alpha: float, *, shared: bool) -> float:
    """The largest probability with which true certificates of ``inputs`` inputs show at least ``flips`` flips."""
    from scipy.special import betainc

    if flips == 0:
        return 1.0
    if shared:
        return min(1.0, inputs * alpha / flips)
    return float(betainc(flips, max(1, inputs - flips + 1), alpha))


def refutation_problems(audit: CertificateAudit, seen: Inspection) -> Iterator[Problem]:
    """The promise of robustness is called refuted where, and only where, the audit or its own bound refutes it."""
    status = block(block(seen.run, "guarantees"), "robustness").get("status")
    refuted = audit.verdict.get("refuted") is True or seen.certificates.get("bound") == PUBLISHED
    if refuted != (status == "refuted"):
        what = "guarantees.robustness.status and the verdict of audit.json differ"
        yield Problem(RUN_JSON, what, shown(status), "refuted" if refuted else "not refuted: the audit refutes nothing")
