"""What a report says about one run, read once from its released files; nothing in ``private/`` is opened."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinproof.auditing.certificate_verdict import audits_of
from twinproof.auditing.interval_verdict import interval_audits_of
from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.attack_record import attacks_of
from twinproof.files import sha256_file
from twinproof.guarantee import EMPTY_EPSILON, PROMISING, Guarantee, Kind
from twinproof.reporting.attacks import (
    AttackFacts,
    AuditFacts,
    IntervalAuditFacts,
    attack_facts,
    audit_facts,
    interval_audit_facts,
)
from twinproof.reporting.evidence import (
    Certification,
    certifications,
    promised,
    recorded_guarantee,
    section,
)
from twinproof.reporting.words import Undone
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.runs.reading import MetricsLine, read_lines


@dataclass(frozen=True)
class Progress:
    """One line of metrics.jsonl: what the test set showed after ``step`` steps and what had been spent by then."""

    step: int
    accuracy: float | None
    epsilon: float | None


@dataclass(frozen=True)
class Privacy:
    """The privacy half of a run: its guarantee, the numbers of ``run.json``, and why they are no promise, if so."""

    guarantee: Guarantee
    numbers: Mapping[str, Any]
    undone: Undone | None

    @property
    def promised(self) -> bool:
        return promised(self.guarantee, self.undone)

    @property
    def epsilon(self) -> float | None:
        """Epsilon where it is a promise; one that means nothing is not shown, however it was computed."""
        return number(self.numbers.get("epsilon")) if self.promised else None

    @property
    def delta(self) -> float | None:
        return number(self.numbers.get("delta"))

    @property
    def weak(self) -> bool:
        return self.epsilon is not None and self.epsilon >= EMPTY_EPSILON


@dataclass(frozen=True)
class RunFacts:
    """A run as its report shows it; what the run does not have is None or empty, but there is always one certification.

    ``examples`` says that the owner asked for raw test records of own data.
    """

    name: str
    run: Mapping[str, Any]
    run_sha256: str
    privacy: Privacy
    certifications: tuple[Certification, ...]
    attacks: tuple[AttackFacts, ...]
    audits: tuple[AuditFacts, ...]
    interval_audits: tuple[IntervalAuditFacts, ...]
    progress: tuple[Progress, ...]
    verification: Mapping[str, Any] | None
    examples: bool

    @property
    def refuting(self) -> list[AttackFacts | AuditFacts | IntervalAuditFacts]:
        """Attacks and audits that contradict certificates."""
        found: list[AttackFacts | AuditFacts | IntervalAuditFacts] = [*self.attacks, *self.audits, *self.interval_audits]
        return [one for one in found if one.refutes]

    @property
    def own_noise(self) -> bool:
        return section(self.run, "config").get("noise_layer") is not None

    @property
    def clean(self) -> Interval | None:
        accuracy = section(self.run, "accuracy")
        value, low, high, confidence = (number(accuracy.get(key)) for key in ("value", "low", "high", "confidence"))
        if value is None or low is None or high is None or confidence is None:
            return None
        return Interval(value, low, high, confidence)

    @property
    def data(self) -> Mapping[str, Any]:
        return section(self.run, "data")

    def certification(self, name: str | None) -> Certification:
        """The certification that an attack or audit is about; the first where it is about none of them."""
        return next((one for one in self.certifications if one.name == name), self.certifications[0])

    def class_name(self, index: int) -> str:
        """The name of a class, or its number where the run does not name it."""
        classes = self.data.get("classes")
        return str(classes[index]) if isinstance(classes, list) and 0 <= index < len(classes) else str(index)


def load_facts(root: Path, verification: Mapping[str, Any] | None = None, *, examples: bool = False) -> RunFacts:
    """Reads the run in ``root``; a RunError where a file that exists is broken, never for one that is not there."""
    run = read_run_json(root)
    certified = tuple(certifications(root, run))
    attacks = tuple(attack_facts(one, certified) for one in attacks_of(root).values())
    audits = tuple(audit_facts(one, certified) for one in audits_of(root).values())
    bounded = tuple(interval_audit_facts(one, certified) for one in interval_audits_of(root).values())
    refused = verification is not None and verification.get("ok") is not True
    tried: list[AttackFacts | AuditFacts | IntervalAuditFacts] = [*attacks, *audits, *bounded]
    contradicted = {one.certification for one in tried if one.refutes}
    return RunFacts(
        name=os.fsencode(root.resolve().name).decode("utf-8", "replace"),  # a name on the disk may be any bytes
        run=run,
        run_sha256=sha256_file(RunLayout(root).run_json),
        privacy=Privacy(
            recorded_guarantee(Kind.PRIVACY, section(section(run, "guarantees"), "privacy")),
            section(run, "privacy"),
            Undone.CHECK_FAILED if refused else None,
        ),
        certifications=tuple(
            replace(one, undone=_undone(one, refused=refused, contradicted=one.name in contradicted)) for one in certified
        ),
        attacks=attacks,
        audits=audits,
        interval_audits=bounded,
        progress=_progress(root),
        verification=verification,
        examples=examples,
    )


def number(value: object) -> float | None:
    """``value`` as a finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _undone(certification: Certification, *, refused: bool, contradicted: bool) -> Undone | None:
    """A promise of radii rests on certificates: without them it is only what ``run.json`` says."""
    if refused:
        return Undone.CHECK_FAILED
    if contradicted:
        return Undone.CONTRADICTED
    return Undone.MISSING if certification.guarantee.status in PROMISING and not certification.certificates else None


def _progress(root: Path) -> tuple[Progress, ...]:
    lines = read_lines(RunLayout(root).metrics, MetricsLine)
    return tuple(Progress(line["step"], number(line.get("test_accuracy")), number(line.get("epsilon"))) for line in lines)
