"""``report.json``: the numbers of the page for other programs, from the same records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from twinproof.data.record import Dataset
from twinproof.evaluation.certified import radius_at_accuracy
from twinproof.guarantee import Guarantee
from twinproof.reporting.attacks import AttackFacts, AuditFacts, IntervalAuditFacts
from twinproof.reporting.card import SHARES, Badge, privacy_badge, privacy_sentence, robustness_badge, robustness_sentence
from twinproof.reporting.evidence import Certification
from twinproof.reporting.examples import attacked_misfit, choose_examples, misfit
from twinproof.reporting.facts import RunFacts, number
from twinproof.reporting.numbers import file_down, file_up
from twinproof.runs.records import values_of

FORMAT = 3
_NOISE = ("noise.law", "noise.place", "noise.sigma", "sampling.n", "sampling.alpha")
_CERTIFICATION = (
    *("method.norm", "method.bound", "method.statistic", "method.confidence", "method.runner_up", *_NOISE),
    *("sampling.shared_noise", "network.form", "network.arithmetic", "sampling.target_radius"),
)
_ATTACKS = (
    *("plan.norm", "plan.sizes", "plan.attacks", "plan.protocols", "plan.steps", "plan.restarts", "plan.draws"),
    *("plan.paper_steps", "plan.aim", "inputs", "method.bound", *_NOISE),
)
_AUDIT = (
    *("state", "norm", "inputs", "attackable", "within", "outward", "budget.steps", "budget.draws", "budget.votes"),
    "false_flips",
)


def json_copy(facts: RunFacts, dataset: Dataset | None = None) -> dict[str, Any]:
    """The content of ``report.json``: radii rounded down and epsilons up to six places; what is not finite becomes text."""
    run, privacy = facts.run, facts.privacy
    shown = dataset if dataset is not None and (dataset.public or facts.examples) else None
    record = {
        "format": FORMAT,
        "run": facts.name,
        "recipe": run.get("recipe"),
        "state": run.get("state"),
        "data": facts.data,
        "guarantees": {
            "privacy": _guarantee(privacy.guarantee, privacy_sentence(privacy), privacy_badge(privacy)),
            "robustness": {
                one.name: _guarantee(one.guarantee, robustness_sentence(one), robustness_badge(one))
                for one in facts.certifications
            },
        },
        "privacy": {
            key: file_up(value) if key in ("epsilon", "epsilon_rdp") and number(value) is not None else value
            for key, value in privacy.numbers.items()
        }
        or None,
        "accuracy": run.get("accuracy"),
        "certifications": [_certification(one, shown) for one in facts.certifications if one.made is not None],
        "progress": [
            {
                "step": line.step,
                "test_accuracy": line.accuracy,
                "epsilon": None if line.epsilon is None else file_up(line.epsilon),
            }
            for line in facts.progress
        ],
        "attacks": [_attacks(one, dataset, shown) for one in facts.attacks],
        "audits": [*(_audit(one) for one in facts.audits), *(_interval_audit(one) for one in facts.interval_audits)],
        # The verifier's record may also name the folder that it ran in.
        "verification": facts.verification
        and {key: facts.verification.get(key) for key in ("ok", "problems", "checks", "not_checked")},
        "versions": run.get("versions"),
        "device": run.get("device"),
        "files": run.get("files"),
        "run_sha256": facts.run_sha256,
    }
    return {key: _plain(value) for key, value in record.items()}


def _guarantee(guarantee: Guarantee, sentence: str, badge: Badge) -> dict[str, Any]:
    """What ``run.json`` records, and in ``shown`` what the page says of it."""
    return {**guarantee.as_dict(), "sentence": sentence, "shown": badge.word}


def _settings(one: Certification) -> dict[str, Any] | None:
    if one.bounded is not None:
        return values_of(one.bounded, "method.norm", "method.bound", "network.form", "network.arithmetic", "step")
    return None if one.settings is None else values_of(one.settings, *_CERTIFICATION)


def _certification(one: Certification, dataset: Dataset | None) -> dict[str, Any]:
    """``claim`` is empty where the radii are a promise."""
    record: dict[str, Any] = {
        "name": one.name,
        "claim": one.words.claim,
        "settings": _settings(one),
        "certified": one.summary.as_dict() if one.summary else None,
        "certified_inputs": len(one.certificates),
        "radius_at_accuracy": {},
        "curve": [{"radius": radius, **interval.as_dict()} for radius, interval in one.curve()],
        "histogram": None,
        "examples": [],
    }
    if one.certificates:
        counts = one.radius_counts()
        radii = {share: radius_at_accuracy(one.certificates, share) for share in SHARES}
        record["radius_at_accuracy"] = {
            str(share): None if radius is None else file_down(radius) for share, radius in radii.items()
        }
        record["histogram"] = {**asdict(counts), "edges": [file_down(edge) for edge in counts.edges]}
        if dataset is not None and not misfit(dataset, one.certificates):
            groups = choose_examples(one.certificates)
            record["examples"] = [{"chosen_as": group.title, "index": c.index} for group in groups for c in group.certificates]
    return record


def _attacks(one: AttackFacts, dataset: Dataset | None, shown: Dataset | None) -> dict[str, Any]:
    """``results`` are those of attacks.json, ``follows`` says whether they still hold."""
    evidence = one.evidence(dataset)
    keys = ("index", "entry", "label", "prediction", "length")
    examples = one.examples if shown is not None and not attacked_misfit(one, shown) else ()
    return {
        "name": one.name,
        "certification": one.certification,
        **values_of(one.settings, *_ATTACKS),
        "certificate_norm": one.settings.method.norm,
        "results": one.recorded,
        "follows": one.follows,
        "crossing": one.refutes,
        "crossing_evidence": {**asdict(evidence), "culprit": str(evidence.culprit)} if one.refutes else None,
        "certified_line": [{"size": size, **share.as_dict()} for size, share in one.certified_line()],
        "examples": [{key: getattr(example.line, key) for key in keys} for example in examples],
    }


def _audit(one: AuditFacts) -> dict[str, Any]:
    """``current`` says whether it is about certificates that the run holds."""
    counts, audit = one.ratios(), one.audit
    return {
        "name": one.name,
        "certification": one.certification,
        **values_of(audit.settings, *_AUDIT),
        "current": one.certification is not None,
        "verdict": None if audit.verdict is None else {**asdict(audit.verdict), "verdict": audit.verdict.words},
        "attacked": len(audit.attacked),
        "histogram": {**asdict(counts), "edges": [file_down(edge) for edge in counts.edges]},
        "flipped": [
            {"index": flipped.index, "ratio": flipped.flip.ratio} for flipped in one.flipped if flipped.flip is not None
        ],
    }


def _interval_audit(one: IntervalAuditFacts) -> dict[str, Any]:
    """An audit of certificates that hold with certainty: no alpha, no histogram, nothing beyond the radius."""
    audit = one.audit
    return {
        "name": one.name,
        "certification": one.certification,
        **values_of(audit.settings, "state", "norm", "inputs", "attackable", "budget.steps", "budget.restarts"),
        "current": one.certification is not None,
        "verdict": asdict(audit.verdict),
        "attacked": audit.verdict.attacked,
        "flipped": [{"index": flip.index, "ratio": flip.ratio} for flip in audit.flips],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
