"""audit.json: the audit is of the certificates that are there, each flip is proven by its votes, and the verdict follows.

What it cannot see: whether the attacks were really made, or whether a flip was found and not written down. It shows that the
audit speaks of these certificates, that what it calls a flip is one, and that nothing was miscounted.

Guarantees
    Any content of the file ends in problems, never in an error. An audit passes only if the digests that it names are those of
    the present certificates and weights, and if the promise in run.json is ``refuted`` exactly where the audit refutes it, or
    where it rests on a bound that is known to be false: then any verdict of an audit is consistent with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof.auditing.evidence import RunFolder, sha256, shown
from twinproof.auditing.fields import (
    FORMAT,
    ORIGIN,
    Field,
    exactly,
    field_problems,
    is_count,
    is_digest,
    is_object,
    is_positive,
    is_positive_count,
    is_rate,
    is_text,
    number,
)
from twinproof.auditing.verification import Findings, Problem
from twinproof.auditing.verify_attacks import Surroundings
from twinproof.auditing.verify_audit_flips import Claim, claims_of, entry_problems, flip_problems
from twinproof.auditing.verify_audit_verdict import verdict_problems
from twinproof.auditing.verify_certificates import SETTINGS_FILE, is_arithmetic, is_draws, is_key
from twinproof.auditing.verify_method import NORMS, one_of
from twinproof.auditing.verify_reach import PUBLISHED
from twinproof.auditing.verify_run_json import FILE as RUN_JSON
from twinproof.guarantee import Status

FILE = "audit.json"
SECTION = "certificates"
# More than this would let an audit excuse its own flips.
MOST_FALSE_FLIPS = 1e-6
# What each digest is of.
_BINDS = {"certificates_sha256": "certificates.csv", "settings_sha256": SETTINGS_FILE, "model_sha256": "model.safetensors"}


def _is_false_flips(value: object) -> bool:
    got = number(value)
    return got is not None and 0 < got <= MOST_FALSE_FLIPS


def _is_list(value: object) -> bool:
    return isinstance(value, list)


AUDIT = (
    Field("state", exactly("complete"), "complete"),
    Field("certificates_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("settings_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("model_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("norm", one_of(NORMS), ", ".join(NORMS)),
    Field("inputs", is_positive_count, "an integer from 1"),
    Field("attackable", is_count, "an integer from 0"),
    Field("within", is_rate, "above 0 and at most 1"),
    Field("outward", is_positive, "a positive number"),
    Field("steps", is_count, "an integer from 0"),
    Field("draws", is_positive_count, "an integer from 1"),
    Field("restarts", is_count, "an integer from 0"),
    Field("directions", is_count, "an integer from 0"),
    Field("rounds", is_count, "an integer from 0"),
    Field("screen", is_positive_count, "an integer from 1"),
    Field("votes", is_draws, "a number of draws"),
    Field("false_flips", _is_false_flips, f"above 0 and at most {MOST_FALSE_FLIPS}"),
    Field("key", is_key, "hexadecimal bytes"),
    Field("form", is_text, "a description, e.g. as given"),
    Field("arithmetic", is_arithmetic, "float32 or tf32"),
    *ORIGIN,
    Field("attacked", _is_list, "a list"),
    Field("verdict", is_object, "an object"),
)


def verify_audit(folder: RunFolder, record: dict[str, Any] | None, around: Surroundings, findings: Findings) -> None:
    """Notes the checks of the audit; ``record`` is what audit.json holds, None where it could not be read."""
    if record is None:
        return
    section = record.get(SECTION)
    top = field_problems(FILE, record, (FORMAT, Field(SECTION, is_object, "an object")), closed=True)
    faults = [*top, *(field_problems(FILE, section, AUDIT, closed=True) if isinstance(section, dict) else ())]
    findings.check("audit settings", faults, "fields of audit.json")
    if not isinstance(section, dict):
        return
    stale = list(stale_problems(folder, section))
    findings.check("audit is of these certificates", stale, "digests of certificates and weights")
    if faults:
        unknown = Problem(FILE, "the audit cannot be checked without sound settings", "see the settings", "sound settings")
        findings.check("audit", (unknown,), "flips and verdict")
        return
    claims = None if stale else claims_of(around.lines, section["inputs"])
    findings.check("audit", _problems(section, claims, around), f"{len(section['attacked'])} attacked certificates")
    if not stale:
        findings.check("refuted promises", _status_problems(section, around), "audit.json against run.json")


def stale_problems(folder: RunFolder, section: dict[str, Any]) -> Iterator[Problem]:
    """Whether the audit is of the certificates and the weights that are in the run now."""
    for name, file in _BINDS.items():
        content = folder.content(file)
        truth = content.what if isinstance(content, Problem) else sha256(content)
        if section.get(name) != truth:
            what = f"stale: {name} is not the digest of {file}"
            yield Problem(FILE, what, shown(section.get(name)), f"{truth}; audit the run again with --overwrite")


def _problems(section: dict[str, Any], claims: list[Claim] | None, around: Surroundings) -> Iterator[Problem]:
    """Everything below the settings; ``claims`` are None for an audit of other certificates."""
    if claims is not None and section["key"] == around.certificates.get("key"):
        yield Problem(FILE, "the noise that judged is the certificates' own", "the key of certificates.json", "another key")
    certified = around.certificates.get("norm")
    if claims is not None and certified in NORMS and section["norm"] != certified:
        yield Problem(FILE, "norm is not that of the certificates", section["norm"], shown(certified))
    faults = list(entry_problems(section, claims, around))
    yield from faults
    if faults:
        return
    yield from flip_problems(section, around)
    yield from verdict_problems(section, around.certificates if claims is not None else {})


def _status_problems(section: dict[str, Any], around: Surroundings) -> Iterator[Problem]:
    guarantees = around.run.get("guarantees")
    robustness = guarantees.get("robustness") if isinstance(guarantees, dict) else None
    status = robustness.get("status") if isinstance(robustness, dict) else None
    refuted = section["verdict"].get("refuted") is True or around.certificates.get("bound") == PUBLISHED
    if refuted != (status == Status.REFUTED):
        what = "guarantees.robustness.status and the verdict of audit.json differ"
        yield Problem(RUN_JSON, what, shown(status), "refuted" if refuted else "not refuted: the audit refutes nothing")
