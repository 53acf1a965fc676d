"""Records of formats 1 and 2, translated once, where they are read, into those of format 3 (docs/formats/run.md).

Their keys stood beside each other. A key that had no place then has none afterwards, and is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof_verify.files import ATTACKS, AUDITS, CERTIFICATES
from twinproof_verify.findings import Problem

ONLY = "only"
"""How the certification of a run before format 3 is called here; there it has no name."""

_MADE = "device versions created seconds"
_NOISE = "law place sigma grid levels tau operator_norm slack slackless_norm"
_SECTIONS = {
    CERTIFICATES: {
        "method": "norm bound statistic confidence runner_up",
        "sampling": "n0 n alpha target_radius shared_noise",
        "noise": f"{_NOISE} dimension operator_norm_method",
        "network": "model_sha256 form arithmetic classes",
        "made": _MADE,
    },
    ATTACKS: {
        "plan": "norm sizes attacks protocols steps step_size restarts draws paper_steps aim",
        "method": "norm=certificate_norm bound",
        "sampling": "n0 n alpha",
        "noise": f"{_NOISE} dimension=noise_dimension",
        "network": "model_sha256 form",
        "made": _MADE,
    },
    AUDITS: {
        "budget": "steps draws restarts directions rounds screen votes",
        "network": "model_sha256 form arithmetic",
        "made": _MADE,
    },
}
"""For each section its keys; where one was called otherwise, ``key=former``."""
# What attacks did not say, as it was always the same. The precision was not written down, and is compared with nothing.
_PLAIN: dict[str, dict[str, Any]] = {
    "method": {"statistic": "votes", "confidence": "clopper-pearson", "runner_up": "complement"},
    "sampling": {"target_radius": None, "shared_noise": False},
    "noise": {"operator_norm_method": "not stated"},
    "network": {"arithmetic": "float32"},
}


def translated(kind: str, record: dict[str, Any], certified: str | None = None, classes: int | None = None) -> dict[str, Any]:
    """A record of a ``kind`` of evidence; ``certified`` is the name of the certificates beside it."""
    if kind == CERTIFICATES:
        return _nested(record, kind)
    if kind == ATTACKS:
        made = _nested(record, kind, certificates=certified)
        for section, values in _PLAIN.items():
            made[section] |= values
        made["network"]["classes"] = classes or 1
        return made
    if not isinstance(record.get("certificates"), dict):
        return record
    made = _nested(record["certificates"], kind, of=certified)
    made["network"]["classes"] = classes or 1
    return {**record, "certificates": made}


def _nested(record: dict[str, Any], kind: str, **added: Any) -> dict[str, Any]:
    sections = {name: [key.rpartition("=") for key in keys.split()] for name, keys in _SECTIONS[kind].items()}
    moved = {old for keys in sections.values() for _, _, old in keys}
    names = {*sections, *added}
    rest = {f"{name} (format 3)" if name in names else name: value for name, value in record.items() if name not in moved}
    nested = {name: {new or old: record[old] for new, _, old in keys if old in record} for name, keys in sections.items()}
    if "noise" in nested:
        nested["noise"].setdefault("slackless_norm", None)
    return {**rest, **nested, **added}


def format_problems(file: str, record: dict[str, Any], *, former: bool) -> Iterator[Problem]:
    """Each layout has formats of its own."""
    stated = record.get("format")
    if type(stated) is int and (stated < 3) != former:
        yield Problem(file, "format has a value it cannot have here", str(stated), "1 or 2" if former else "3, as in run.json")
