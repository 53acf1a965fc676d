"""Audits: each is of the certificates that are there, each flip is proven by its votes, and the verdict follows.

What cannot be seen here: whether the attacks were really made, or whether a flip was found and not written down. An audit
passes only if the digests that it names are those of the present certificates and weights, and if the promise in run.json is
``refuted`` exactly where the audit refutes it or where it rests on a bound that is known to be false.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import betainc

from twinproof_verify import models
from twinproof_verify.attack_results import distances, in_units
from twinproof_verify.bounds import CLOPPER_PEARSON, HOEFFDING, lower_bound
from twinproof_verify.certificate_lines import ABSTAIN, Lines
from twinproof_verify.certificates import (
    RESOLUTIONS,
    SCORES,
    VOTES,
    CertificateSettings,
    NormName,
    Work,
    network_problems,
)
from twinproof_verify.evidence import Originals, RunFolder, sha256, shown
from twinproof_verify.files import MODEL, Evidence
from twinproof_verify.findings import Problem
from twinproof_verify.models import Record, block, differences, exact, number, rounded_down, rounded_up, special
from twinproof_verify.run_json import PublicData
from twinproof_verify.sentences import REFUTED_BELOW

BINOMIAL, MARKOV = "binomial", "markov"
HELD, UNDECIDED, FLIPPED = "held", "undecided", "flipped"
# Confirmations that the false flips of an audit are shared among, for each certificate.
CONFIRMATIONS = 10
# Distances are square roots of integers in float64, and lie on a side of the radius up to their last bits.
FLOAT_SLACK = 1e-12
# Faults that are named one by one.
NAMED = 20


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


class Budget(Record):
    """How hard was searched."""

    steps: models.Count
    draws: models.PositiveCount
    restarts: models.Count
    directions: models.Count
    rounds: models.Count
    screen: models.PositiveCount
    votes: models.Draws


class CertificateAudit(Work):
    """``certificates`` of an audit."""

    of: models.Name
    certificates_sha256: models.Digest
    settings_sha256: models.Digest
    norm: NormName
    inputs: models.PositiveCount
    attackable: models.Count
    within: models.Rate
    outward: models.Positive
    budget: Budget
    # More than this would let an audit excuse its own flips.
    false_flips: Annotated[float, Field(gt=0, le=1e-6)]
    attacked: list[Attacked]
    verdict: dict[str, Any]


class AuditFile(Record):
    """The file of an audit."""

    format: models.Format
    certificates: CertificateAudit


def stale_problems(folder: RunFolder, file: str, section: dict[str, Any], of: Evidence) -> Iterator[Problem]:
    stated = {name: section.get(name) for name in ("certificates_sha256", "settings_sha256")}
    stated["model_sha256"] = block(section, "network").get("model_sha256")
    for (name, said), bound in zip(stated.items(), (of.csv, of.json, MODEL), strict=True):
        content = folder.content(bound)
        truth = content.what if isinstance(content, Problem) else sha256(content)
        if said != truth:
            what = f"stale: {name} is not the digest of {bound}"
            yield Problem(file, what, shown(said), f"{truth}; audit the run again with --overwrite")


@dataclass(frozen=True)
class Context:
    """What an audit in ``file`` is checked against; an audit of other certificates has none of their settings and lines."""

    file: str
    data: PublicData
    originals: Originals | None
    certificates: CertificateSettings | None
    lines: Lines | None
    stale: bool

    @property
    def scores(self) -> bool:
        return self.certificates is not None and self.certificates.method.statistic == SCORES


def audit_problems(audit: CertificateAudit, seen: Context) -> Iterator[Problem]:
    """Flips and verdict of sound settings; an audit of other certificates (stale) is only checked by itself."""
    certificates, file = None if seen.stale else seen.certificates, seen.file
    yield from network_problems(file, audit, seen.data.classes)
    if certificates is not None and audit.key == certificates.key:
        yield Problem(file, "the noise that judged is the certificates' own", "the key of certificates.json", "another key")
    if certificates is not None and audit.norm != certificates.method.norm:
        yield Problem(file, "norm is not that of the certificates", audit.norm, certificates.method.norm)
    faults = list(_list_problems(audit, seen))
    yield from faults
    if faults:
        return
    entries = [(f"attacked[{at}]", entry) for at, entry in enumerate(audit.attacked)]
    yield from _few(file, (problem for where, entry in entries for problem in _verdict_problems(file, where, entry)))
    flipped = [(where, entry, entry.flip) for where, entry in entries if entry.flip is not None]
    found = (problem for where, entry, flip in flipped for problem in _flip_problems(where, entry, flip, audit, seen))
    yield from _few(file, found)
    yield from _few(file, _vote_problems([(where, flip) for where, _, flip in flipped], audit, seen))
    yield from _total_problems(file, audit, certificates)


def _few(file: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    """The first ones, so that a broken list does not bury the rest."""
    for at, problem in enumerate(problems):
        if at == NAMED:
            yield Problem(file, "attacked: there are more problems of this kind", "not listed", "none")
            return
        yield problem


def _list_problems(audit: CertificateAudit, seen: Context) -> Iterator[Problem]:
    """The list by itself and against the certificates, each of which with an answer and a radius must be there once."""
    attacked, lines, file = audit.attacked, seen.lines, seen.file
    if len(attacked) != audit.attackable:
        what, wanted = "attacked does not hold every certificate that was to be attacked", f"{audit.attackable} (attackable)"
        yield Problem(file, what, str(len(attacked)), wanted)
    if seen.stale:
        return
    claims: list[tuple[int, int, float]] = []
    if lines is not None:
        some = (column[: audit.inputs].tolist() for column in (lines.index, lines.prediction, lines.radius))
        claims = [one for one in zip(*some, strict=True) if one[1] != ABSTAIN and one[2] > 0]
    if audit.attackable != len(claims):
        what = "attackable is not the number of certificates that claim something"
        yield Problem(file, what, str(audit.attackable), str(len(claims)))
    if lines is not None and audit.inputs > len(lines.rows):
        yield Problem(file, "inputs is more than were certified", str(audit.inputs), str(len(lines.rows)))
    what = "is not the certificate of certificates.csv"
    found = (
        Problem(file, f"attacked[{at}] {what}", shown([one.index, one.prediction, one.radius]), shown(list(claim)))
        for at, (one, claim) in enumerate(zip(attacked, claims, strict=False))
        if (one.index, one.prediction, one.radius) != claim
    )
    yield from _few(file, found)


def _verdict_problems(file: str, where: str, entry: Attacked) -> Iterator[Problem]:
    """``flipped`` exactly where the flip lies inside; what was undecided cannot be seen afterwards."""
    flip = entry.flip
    inside = flip is not None and flip.distance < entry.radius * (1 - FLOAT_SLACK)
    if inside != (entry.verdict == FLIPPED):
        wanted = FLIPPED if inside else f"{HELD} or {UNDECIDED}: no flip lies inside the radius"
        yield Problem(file, f"{where}.verdict does not follow from the flip", entry.verdict, wanted)
    if flip is not None and inside != (flip.stored is not None):
        wanted = "the input, as it contradicts the certificate" if inside else "null: it contradicts nothing"
        yield Problem(file, f"{where}.flip.stored does not follow from the distance", shown(flip.stored), wanted)


def _flip_problems(where: str, entry: Attacked, flip: Flip, audit: CertificateAudit, seen: Context) -> Iterator[Problem]:
    """Another class, at the distance that is written, within what was searched."""
    classes, distance, file = seen.data.classes, flip.distance, seen.file
    if flip.prediction == entry.prediction or (classes is not None and flip.prediction >= classes):
        yield Problem(file, f"{where}.flip is to no other class", str(flip.prediction), f"not {entry.prediction}")
    ratio = rounded_down(distance / entry.radius)
    if not ratio.low <= flip.ratio <= ratio.high:
        what, wanted = f"{where}.flip.ratio is not distance over radius", f"{ratio.value!r}, rounded down"
        yield Problem(file, what, repr(flip.ratio), wanted)
    if not distance <= entry.radius * audit.outward * (1 + FLOAT_SLACK):
        yield Problem(file, f"{where}.flip is further away than was searched", repr(distance), f"{audit.outward} radii")
    if flip.found_by == "input" and distance != 0:
        yield Problem(file, f"{where}.flip was found at the input itself, but lies elsewhere", repr(distance), "distance 0")
    if flip.draws != audit.budget.votes:
        yield Problem(file, f"{where}.flip.draws is not the number of a confirmation", str(flip.draws), str(audit.budget.votes))
    if seen.data.levels is not None:
        yield from _place_problems(where, entry.index, flip, audit.norm, seen.data.levels, seen)


def _place_problems(where: str, index: int, flip: Flip, norm: str, levels: int, seen: Context) -> Iterator[Problem]:
    """Stored inputs are whole levels apart (in l2 the root of a whole number of squared levels); the input is storable."""
    distance, dimension, file = flip.distance, seen.data.dimension, seen.file
    # A product: a power would raise where this is infinite.
    measured = distance * levels * (distance * levels if norm == "l2" else 1)
    if not (math.isfinite(measured) and abs(measured - round(measured)) <= FLOAT_SLACK * 1e3 * max(1.0, measured)):
        what = f"{where}.flip.distance is none between stored inputs"
        yield Problem(file, what, repr(distance), f"{'the root of ' if norm == 'l2' else ''}an integer, over {levels}")
    if flip.stored is None or dimension is None:
        return
    if len(flip.stored) != dimension or not all(type(one) is int and 0 <= one <= levels for one in flip.stored):
        wanted = f"{dimension} integers from 0 to {levels}"
        yield Problem(file, f"{where}.flip.stored is no input", shown(flip.stored), wanted)
    elif seen.originals is not None and index < len(seen.originals.inputs):
        point: NDArray[np.int64] = np.array([flip.stored], dtype=np.int64)
        true = float(in_units(distances(point, seen.originals.rows(index, index + 1), norm), norm, levels)[0])
        if not abs(true - distance) <= FLOAT_SLACK * max(1.0, true):
            yield Problem(file, f"{where}.flip.distance is not that of the stored input", repr(distance), repr(true))


def _vote_problems(flips: list[tuple[str, Flip]], audit: CertificateAudit, seen: Context) -> Iterator[Problem]:
    """Another class has more than half of the probability (or score) there, at the level that all confirmations share."""
    level = audit.false_flips / (CONFIRMATIONS * max(1, audit.attackable))
    unit = RESOLUTIONS[SCORES if seen.scores else VOTES]
    most = audit.budget.votes * unit
    some = np.array([min(flip.votes, most) for _, flip in flips], dtype=np.int64)
    bound = lower_bound(HOEFFDING if seen.scores else CLOPPER_PEARSON, some, some, audit.budget.votes, unit, level)
    bound -= 0.0 if seen.certificates is None else seen.certificates.noise.tau
    for (where, flip), p in zip(flips, bound.tolist(), strict=True):
        if flip.votes > most or not p > 0.5 - FLOAT_SLACK:
            got = f"{flip.votes} of {most} votes: at least {p:.6f}"
            yield Problem(seen.file, f"{where}.flip is not proven by its votes", got, f"above one half, at level {level!r}")


def _total_problems(file: str, audit: CertificateAudit, certificates: CertificateSettings | None) -> Iterator[Problem]:
    """Every value of the verdict that the list of sound entries does not give.

    Where the certificates that were attacked are gone, alpha and the bound are taken as the verdict states them.
    """
    alpha = number(audit.verdict.get("alpha")) if certificates is None else certificates.sampling.alpha
    if alpha is None or not 0 < alpha < 1:
        yield Problem(file, "the verdict cannot be checked without alpha", "no usable alpha", "a number between 0 and 1")
        return
    shared = audit.verdict.get("bound") == MARKOV if certificates is None else certificates.sampling.shared_noise
    for path, got, wanted in differences(audit.verdict, _expected(audit, alpha, shared=shared), "verdict"):
        yield Problem(file, f"{path} does not follow from the attacked certificates", got, wanted)


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
    if flips == 0:
        return 1.0
    if shared:
        return min(1.0, inputs * alpha / flips)
    return float(betainc(flips, max(1, inputs - flips + 1), alpha))
