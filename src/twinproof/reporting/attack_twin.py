"""The numbers under attack and of the audit for machines: the same as on the page, from the same functions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from twinproof.auditing.certificate_verdict import CertificateAudit
from twinproof.data.record import Dataset
from twinproof.reporting.attack_facts import AttackFacts
from twinproof.reporting.attack_gallery import attacked_misfit
from twinproof.reporting.audit_facts import AuditFacts
from twinproof.reporting.crossing_box import crossing_evidence
from twinproof.reporting.examples import withheld
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.numbers import radius_number
from twinproof.runs.records import values_of

_ATTACK_SETTINGS = (
    *("plan.norm", "plan.sizes", "plan.attacks", "plan.protocols", "plan.steps", "plan.restarts", "plan.draws"),
    *("plan.paper_steps", "plan.aim", "inputs", "method.bound", "noise.law", "noise.place", "noise.sigma"),
    *("sampling.n", "sampling.alpha"),
)
_AUDIT_SETTINGS = (
    *("state", "norm", "inputs", "attackable", "within", "outward", "budget.steps", "budget.draws", "budget.votes"),
    "false_flips",
)


def attacks_twin(facts: RunFacts, dataset: Dataset | None) -> dict[str, Any] | None:
    """The entry ``attacks`` of report.json; ``results`` are those of attacks.json, ``follows`` says whether they still hold."""
    attacks = facts.attacks
    if attacks is None:
        return None
    return {
        **values_of(attacks.settings, *_ATTACK_SETTINGS),
        "certificate_norm": attacks.settings.method.norm,
        "results": attacks.results,
        "follows": attacks.follows,
        "crossing": attacks.crossing,
        "crossing_evidence": crossing_evidence(attacks, dataset).as_dict() if attacks.crossing else None,
        "certified_line": [{"size": size, **share.as_dict()} for size, share in attacks.certified_line()],
        "examples": [] if dataset is None or withheld(facts, dataset) else _examples(attacks, dataset),
    }


def audit_twin(found: AuditFacts | None) -> dict[str, Any] | None:
    """The entry ``audit`` of report.json; ``current`` says whether it is about the certificates that the run holds."""
    if found is None:
        return None
    counts, settings = found.ratios(), found.audit.settings
    return {
        **values_of(settings, *_AUDIT_SETTINGS),
        "current": found.current,
        "verdict": _verdict(found.audit),
        "attacked": len(found.audit.attacked),
        "histogram": {**asdict(counts), "edges": [radius_number(edge) for edge in counts.edges]},
        "flipped": [{"index": one.index, "ratio": one.flip.ratio} for one in found.flipped if one.flip is not None],
    }


def _verdict(audit: CertificateAudit) -> dict[str, Any] | None:
    return None if audit.verdict is None else {**asdict(audit.verdict), "verdict": audit.verdict.words}


def _examples(attacks: AttackFacts, dataset: Dataset) -> list[dict[str, Any]]:
    """The attacked inputs that the page shows."""
    if attacked_misfit(attacks, dataset) is not None:
        return []
    return [
        {
            "index": example.line.index,
            "entry": example.line.entry,
            "label": example.line.label,
            "prediction": example.line.prediction,
            "length": example.line.length,
        }
        for example in attacks.examples
    ]
