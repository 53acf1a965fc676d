"""The report for machines: the same numbers as the page, from the same functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from twinproof.data.record import Dataset
from twinproof.evaluation.certified import radius_at_accuracy
from twinproof.reporting.attack_twin import attacks_twin, audit_twin
from twinproof.reporting.card import SHARES, privacy_sentence, robustness_sentence
from twinproof.reporting.examples import choose_examples, misfit, withheld
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.numbers import epsilon_number, radius_number
from twinproof.reporting.sections import radius_counts
from twinproof.runs.records import values_of

FORMAT = 2
_CERTIFICATION = (
    *("method.norm", "method.bound", "noise.law", "noise.place", "noise.sigma", "method.statistic", "method.confidence"),
    *("method.runner_up", "sampling.shared_noise", "network.form", "network.arithmetic", "sampling.target_radius"),
)


def twin(facts: RunFacts, dataset: Dataset | None = None) -> dict[str, Any]:
    """The content of ``report.json``; parts that the run does not have are null or empty, never left out.

    Guarantees
        Radii are rounded down and epsilons up to six places; what is not finite becomes text, so the file is valid JSON.
    """
    run = facts.run
    record = {
        "format": FORMAT,
        "run": facts.name,
        "recipe": run.get("recipe"),
        "state": run.get("state"),
        "data": facts.data,
        "guarantees": {
            "privacy": {**facts.privacy.as_dict(), "sentence": privacy_sentence(facts)},
            "robustness": {**facts.robustness.as_dict(), "sentence": robustness_sentence(facts)},
        },
        "privacy": _privacy(run.get("privacy")),
        "accuracy": run.get("accuracy"),
        "certified": facts.summary.as_dict() if facts.summary else None,
        "certified_inputs": len(facts.certificates),
        "certification": _certification(facts),
        "radius_at_accuracy": _held(facts),
        "curve": [{"radius": radius, **interval.as_dict()} for radius, interval in facts.curve()],
        "histogram": _histogram(facts),
        "progress": [_progress(line.step, line.accuracy, line.epsilon) for line in facts.progress],
        "examples": _examples(facts, dataset),
        "attacks": attacks_twin(facts, dataset),
        "audit": audit_twin(facts.audit),
        "verification": _outcome(facts),
        "versions": run.get("versions"),
        "device": run.get("device"),
        "files": run.get("files"),
        "run_sha256": facts.run_sha256,
    }
    return {key: _plain(value) for key, value in record.items()}


def _outcome(facts: RunFacts) -> dict[str, Any] | None:
    """Only what was found: the verifier's record may also name the folder it ran in, which is nobody's business."""
    if facts.verification is None:
        return None
    return {key: facts.verification.get(key) for key in ("ok", "problems", "checks", "not_checked")}


def _privacy(recorded: Any) -> dict[str, Any] | None:
    if not isinstance(recorded, Mapping):
        return None
    spent = ("epsilon", "epsilon_rdp")
    return {key: epsilon_number(value) if key in spent and _finite(value) else value for key, value in recorded.items()}


def _certification(facts: RunFacts) -> dict[str, Any] | None:
    """How the certificates were made, as far as it bears on what they say, and whether their radii are only a ``claim``."""
    if facts.settings is None:
        return None
    return {**values_of(facts.settings, *_CERTIFICATION), "claim": facts.words.claim}


def _held(facts: RunFacts) -> dict[str, float | None]:
    if not facts.certificates:
        return {}
    radii = {share: radius_at_accuracy(facts.certificates, share) for share in SHARES}
    return {str(share): None if radius is None else radius_number(radius) for share, radius in radii.items()}


def _histogram(facts: RunFacts) -> dict[str, Any] | None:
    if not facts.certificates:
        return None
    counts = radius_counts(facts)
    edges = [radius_number(edge) for edge in counts.edges]
    return {"edges": edges, "correct": counts.correct, "wrong": counts.wrong, "abstained": counts.abstained}


def _progress(step: int, accuracy: float | None, epsilon: float | None) -> dict[str, float | None]:
    return {"step": step, "test_accuracy": accuracy, "epsilon": None if epsilon is None else epsilon_number(epsilon)}


def _examples(facts: RunFacts, dataset: Dataset | None) -> list[dict[str, Any]]:
    if dataset is None or withheld(facts, dataset) or not facts.certificates or misfit(dataset, facts.certificates) is not None:
        return []
    groups = choose_examples(facts.certificates)
    return [{"chosen_as": group.title, "index": member.index} for group in groups for member in group.certificates]


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become text, so that nothing is lost and nothing breaks."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
