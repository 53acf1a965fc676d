"""Everything a report says about one run, read once from its released files; nothing in ``private/`` is opened."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.certification.record import CertificateSettings, certifications
from twinproof.errors import DataError
from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.certified import CertifiedSummary, already_refuted, certified_curve, default_radii, summarize
from twinproof.files import sha256_file
from twinproof.guarantee import EMPTY_EPSILON, PROMISING, Guarantee, Kind, Status
from twinproof.reporting.attack_facts import AttackFacts, load_attacks
from twinproof.reporting.audit_facts import AuditFacts, load_audit
from twinproof.reporting.numbers import radius_number
from twinproof.reporting.radius_words import RadiusWords
from twinproof.runs.certificates import Certificate
from twinproof.runs.layout import FORMAT, MetricsLine, RunLayout, read_run_json
from twinproof.runs.reading import read_lines

CURVE_POINTS = 200
_STEPS = (5.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
_TABLE_ROWS = 5


@dataclass(frozen=True)
class Progress:
    """One line of metrics.jsonl: what the test set showed after ``step`` steps and what had been spent by then."""

    step: int
    accuracy: float | None
    epsilon: float | None


@dataclass(frozen=True)
class RunFacts:
    """A run as the report sees it; what the run does not have (yet) is None or empty."""

    name: str
    run: Mapping[str, Any]
    run_sha256: str
    privacy: Guarantee
    robustness: Guarantee
    settings: CertificateSettings | None
    certificates: tuple[Certificate, ...]
    summary: CertifiedSummary | None
    progress: tuple[Progress, ...]
    verification: Mapping[str, Any] | None
    attacks: AttackFacts | None = None
    audit: AuditFacts | None = None
    unusable: str = ""
    """Why certificates that are there cannot be summarised: a radius that no number of votes gives."""
    examples: bool = False
    """Whether the owner asked for raw test records of own data in the report."""

    @property
    def contradicted(self) -> bool:
        """Whether an attack stands against the certificates: then no radius is shown as a promise."""
        return (self.attacks is not None and self.attacks.crossing) or (self.audit is not None and self.audit.refuted)

    @property
    def expected(self) -> bool:
        """Whether attacks that succeed inside radii are no surprise: the bound behind them is known to be false."""
        return self.settings is not None and already_refuted(self.settings)

    @property
    def own_noise(self) -> bool:
        """Whether its network has a noise layer."""
        return section(self.run, "config").get("noise_layer") is not None

    @property
    def words(self) -> RadiusWords:
        """What its radii may be called."""
        return RadiusWords.of(self.robustness.status, self.settings)

    @property
    def epsilon(self) -> float | None:
        """Epsilon as the accountant counted it; a promise only if the guarantee's status says so."""
        return number(section(self.run, "privacy").get("epsilon"))

    @property
    def refused(self) -> bool:
        """Whether a verification was made and failed: then nothing the run says may be relied on."""
        return self.verification is not None and self.verification.get("ok") is not True

    def promises(self, guarantee: Guarantee) -> bool:
        """Whether a guarantee may be shown as a promise: claimed by its status, and undone by no verification or attack."""
        undone = self.refused or (guarantee.kind is Kind.ROBUSTNESS and self.contradicted)
        return guarantee.status in PROMISING and not undone

    @property
    def words_unchecked(self) -> bool:
        """Whether no verification compares the words of its promises with the settings: those of format 1."""
        return self.run.get("format") == 1

    @property
    def says_little(self) -> bool:
        """Whether privacy is promised with an epsilon so large that the promise is not shown as a proof."""
        return self.promised_epsilon is not None and self.promised_epsilon >= EMPTY_EPSILON

    @property
    def promised_epsilon(self) -> float | None:
        """Epsilon where it is a promise; an epsilon that means nothing is not shown, however it was computed."""
        return self.epsilon if self.promises(self.privacy) else None

    @property
    def delta(self) -> float | None:
        """The delta that belongs to epsilon."""
        return number(section(self.run, "privacy").get("delta"))

    @property
    def clean(self) -> Interval | None:
        """Accuracy of the network itself, without smoothing."""
        ends = [number(section(self.run, "accuracy").get(key)) for key in ("value", "low", "high", "confidence")]
        value, low, high, confidence = ends
        if value is None or low is None or high is None or confidence is None:
            return None
        return Interval(value, low, high, confidence)

    @property
    def data(self) -> Mapping[str, Any]:
        """The public description of the data set."""
        return section(self.run, "data")

    @property
    def largest_shown(self) -> float:
        """Right end of the axes: the largest radius found, or the largest possible one where none was."""
        found = max((certificate.radius for certificate in self.certificates), default=0.0)
        return found or (self.settings.largest_radius if self.settings else 0.0) or 1.0

    @property
    def decided_shown(self) -> float:
        """Right end of curves and tables: the target radius, where drawing stopped there, and beyond which nothing is known."""
        target = self.settings.sampling.target_radius if self.settings else None
        return self.largest_shown if target is None else min(target, self.largest_shown)

    def class_name(self, index: int) -> str:
        """The name of a class, or its number where the run does not name it."""
        classes = self.data.get("classes")
        return str(classes[index]) if isinstance(classes, list) and 0 <= index < len(classes) else str(index)

    def curve(self) -> list[tuple[float, Interval]]:
        """Certified accuracy at evenly spaced radii of six places, up to the largest; empty without certificates."""
        if not self.certificates:
            return []
        radii = [radius_number(index / CURVE_POINTS * self.decided_shown) for index in range(CURVE_POINTS + 1)]
        return certified_curve(self.certificates, radii)


def load_facts(root: Path, verification: Mapping[str, Any] | None = None, *, examples: bool = False) -> RunFacts:
    """Reads the run in ``root``; a RunError where a file that exists is broken, never for one that is not there."""
    run = read_run_json(root)
    certification = next(iter(certifications(root).values()), None)
    settings = None if certification is None else certification.settings
    certificates = () if certification is None else tuple(certification.certificates)
    guarantees = section(run, "guarantees")
    robustness = section(guarantees, "robustness")
    if run.get("format") == FORMAT:
        robustness = {} if certification is None else section(robustness, certification.name)
    summary, unusable = _summary(certificates, settings)
    return RunFacts(
        name=os.fsencode(root.resolve().name).decode("utf-8", "replace"),  # a name on the disk may be any bytes
        run=run,
        run_sha256=sha256_file(RunLayout(root).run_json),
        privacy=_guarantee(Kind.PRIVACY, section(guarantees, "privacy")),
        robustness=_guarantee(Kind.ROBUSTNESS, robustness),
        settings=settings,
        certificates=certificates if settings else (),
        summary=summary,
        progress=_progress(root),
        verification=verification,
        attacks=load_attacks(root, settings, certificates),
        audit=load_audit(root, certification),
        unusable=unusable,
        examples=examples,
    )


def _summary(
    certificates: tuple[Certificate, ...], settings: CertificateSettings | None
) -> tuple[CertifiedSummary | None, str]:
    """The numbers of the certificates, or why there are none: a report must be able to show a run that lies."""
    if settings is None or not certificates:
        return None, ""
    try:
        return summarize(certificates, settings, radii=default_radii(settings.decided_radius)), ""
    except DataError as error:
        return None, f"{error.what} (got {error.got}, wanted {error.wanted})"


def number(value: object) -> float | None:
    """``value`` as a finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def section(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping at ``key``, empty where there is none (a null, an older file)."""
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def table_radii(largest: float) -> list[float]:
    """A handful of round radii for a table: the multiples of 0.25 where they suffice, finer or coarser ones otherwise."""
    if 1.0 <= largest < 2.5:
        return default_radii(largest)
    step = next((step for step in _STEPS if largest / step >= _TABLE_ROWS - 1), _STEPS[-1])
    return [round(index * step, 6) for index in range(int(largest / step + 1e-9) + 1)][: 2 * _TABLE_ROWS]


def _guarantee(kind: Kind, record: Mapping[str, Any]) -> Guarantee:
    assumptions, values = record.get("assumptions"), section(record, "values")
    return Guarantee(
        kind=kind,
        status=Status(record.get("status", Status.NONE)),
        promise=str(record.get("promise") or ""),
        theorem=str(record.get("theorem") or ""),
        assumptions=tuple(map(str, assumptions)) if isinstance(assumptions, list) else (),
        reason=str(record.get("reason") or ""),
        values=tuple((str(name), value) for name, value in values.items()),
    )


def _progress(root: Path) -> tuple[Progress, ...]:
    lines = read_lines(RunLayout(root).metrics, MetricsLine)
    return tuple(Progress(line["step"], number(line.get("test_accuracy")), number(line.get("epsilon"))) for line in lines)
