"""Audits of certificates by interval bounds: each flip contradicts a line that is there, and the verdict follows.

Such certificates hold with certainty, so that one flip refutes them, and no chance is weighed. Where a flip keeps its point,
that is measured from the test set, and the network bounded there: a point whose answer is proven to be the certified one is
no flip. What cannot be seen here is whether the attacks were really made, or whether a flip was found and not written down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from twinproof_verify import audits, models
from twinproof_verify.certificates import FLOAT32, Work, network_problems
from twinproof_verify.evidence import shown
from twinproof_verify.files import CERTIFICATES, Evidence
from twinproof_verify.findings import Problem
from twinproof_verify.interval_certificates import IntervalCertification, run_network
from twinproof_verify.models import Record, block, differences, read
from twinproof_verify.sentences import INTERVALS

if TYPE_CHECKING:
    from twinproof_verify.inspection import Inspection
    from twinproof_verify.interval import Network


class Flip(Record):
    """Another answer at a point inside the radius; the first flips of a file keep the point."""

    index: models.Count
    prediction: models.Count
    answer: models.Count
    distance: models.NotNegative
    radius: models.Positive
    point: list[models.Probability] | None


class Budget(Record):
    """How hard was searched."""

    steps: models.PositiveCount
    restarts: models.PositiveCount


class IntervalAudit(Work):
    """``intervals`` of an audit."""

    of: models.Name
    certificates_sha256: models.Digest
    settings_sha256: models.Digest
    norm: Literal["linf"]
    inputs: models.PositiveCount
    attackable: models.Count
    budget: Budget
    flips: list[Flip]
    verdict: dict[str, Any]


class AuditFile(Record):
    """The file of such an audit."""

    format: models.Format
    intervals: IntervalAudit


def check(seen: Inspection, one: Evidence, record: dict[str, Any]) -> None:
    """Settings, digests, flips and verdict."""
    findings, section = seen.findings, block(record, INTERVALS)
    audit, faults = read(AuditFile, record, one.json)
    named = section.get("of")
    certified = seen.bounded.get(named) if isinstance(named, str) else None
    faults += models.format_problems(one.json, record, former=models.is_former(seen.run))
    if certified is None:
        what = "of is no certification by interval bounds of the run"
        faults.append(Problem(one.json, what, shown(named), ", ".join(seen.bounded) or "one"))
    findings.check(one.titled("audit settings"), faults, f"fields of {one.json}")
    of = Evidence.of(CERTIFICATES) if certified is None else certified.files
    stale = list(audits.stale_problems(seen.folder, one.json, section, of))
    findings.check(one.titled("audit is of these certificates"), stale, "digests of certificates and weights")
    told = one.json, block(section, "verdict")
    seen.audits.setdefault(str(named), []).append(told)
    if audit is None:
        seen.unsound(one, "audit", "the audit", "flips and verdict")
        return
    found = _problems(seen, one.json, audit.intervals, None if stale else certified)
    findings.check(one.titled("audit"), found, f"{audit.intervals.attackable} attacked certificates")
    if not stale:
        seen.current.setdefault(str(named), []).append(told)


def _problems(seen: Inspection, file: str, audit: IntervalAudit, certified: IntervalCertification | None) -> Iterator[Problem]:
    """Without ``certified`` (the audit is stale) only what the file says by itself."""
    yield from network_problems(file, audit, seen.data.classes)
    if audit.network.arithmetic != FLOAT32:
        yield Problem(file, "interval bounds are proven for float32", audit.network.arithmetic, FLOAT32)
    if certified is not None and certified.lines is not None:
        lines = certified.lines
        some = [column[: audit.inputs].tolist() for column in (lines.index, lines.prediction, lines.radius)]
        claims = {index: (prediction, radius) for index, prediction, radius in zip(*some, strict=True) if radius > 0}
        if audit.inputs > len(lines.rows):
            yield Problem(file, "inputs is more than were certified", str(audit.inputs), str(len(lines.rows)))
        if audit.attackable != len(claims):
            what = "attackable is not the number of certificates that claim something"
            yield Problem(file, what, str(audit.attackable), str(len(claims)))
        for at, flip in enumerate(audit.flips):
            if claims.get(flip.index) != (flip.prediction, flip.radius):
                what = f"flips[{at}] is not about a certificate of certificates.csv"
                got = f"input {flip.index}, class {flip.prediction}, radius {flip.radius!r}"
                yield Problem(file, what, got, shown(claims.get(flip.index)))
    if not all(before.index < after.index for before, after in pairwise(audit.flips)):
        yield Problem(file, "the flips are not in the order of their inputs, each once", "another order", "growing numbers")
    if audit.flips and audit.flips[0].point is None:
        yield Problem(file, "no flip keeps its point, so that none can be checked", "null", "the first one's")
    network = run_network(seen) if any(flip.point is not None for flip in audit.flips) else ""
    if isinstance(network, str) and network:
        seen.findings.leave(f"the network's answers at the flips of {file}: {network}")
    for at, flip in enumerate(audit.flips):
        yield from _flip_problems(seen, file, f"flips[{at}]", flip)
    if certified is not None and not isinstance(network, (str, Problem)):
        yield from _answer_problems(file, audit.flips, network)
    for path, got, wanted in differences(audit.verdict, _expected(audit), "verdict"):
        yield Problem(file, f"{path} does not follow from the flips", got, wanted)


def _flip_problems(seen: Inspection, file: str, where: str, flip: Flip) -> Iterator[Problem]:
    if flip.answer == flip.prediction or flip.answer >= (seen.data.classes or math.inf):
        yield Problem(file, f"{where}.answer is no other class", str(flip.answer), f"a class that is not {flip.prediction}")
    if not flip.distance <= flip.radius * (1 + audits.FLOAT_SLACK):
        yield Problem(file, f"{where} lies outside of the radius", repr(flip.distance), f"at most {flip.radius!r}")
    if flip.point is None or seen.data.dimension is None:
        return
    if len(flip.point) != seen.data.dimension:
        yield Problem(file, f"{where}.point is no input", f"{len(flip.point)} numbers", str(seen.data.dimension))
    elif seen.originals is not None and seen.data.levels is not None and flip.index < len(seen.originals.inputs):
        centre = seen.originals.rows(flip.index, flip.index + 1).reshape(-1) / seen.data.levels
        true = float(np.max(np.abs(np.array(flip.point) - centre)))
        if not abs(true - flip.distance) <= audits.FLOAT_SLACK:
            yield Problem(file, f"{where}.distance is not that of the point", repr(flip.distance), repr(true))


def _answer_problems(file: str, flips: list[Flip], network: Network) -> Iterator[Problem]:
    """An answer that interval bounds prove at the point itself was not another one."""
    usable = [
        (at, flip, flip.point)
        for at, flip in enumerate(flips)
        if flip.point is not None and len(flip.point) == network.inputs and flip.prediction < network.classes
    ]
    if not usable:
        return
    stored = np.array([point for _, _, point in usable]) * network.levels
    held = network.holds(stored, np.array([flip.prediction for _, flip, _ in usable]), np.zeros(len(usable)))
    for at, flip, _ in (one for one, certified in zip(usable, held.tolist(), strict=True) if certified):
        what = f"flips[{at}] is none: the network gives the certified answer at its point"
        yield Problem(file, what, f"class {flip.answer}", f"class {flip.prediction}")


def _expected(audit: IntervalAudit) -> dict[str, Any]:
    flips = len(audit.flips)
    return {
        "inputs": audit.inputs,
        "attacked": audit.attackable,
        "flips": flips,
        "refuted": flips > 0,
        "verdict": "nothing to attack" if not audit.attackable else "refuted" if flips else "not refuted",
    }
