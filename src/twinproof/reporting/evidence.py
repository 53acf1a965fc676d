"""The certifications of a run as a report shows them, each with its name and its promise.

A file that is broken is a RunError, one that is absent is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from twinproof.certification import method
from twinproof.certification.interval_run import IntervalCertification, IntervalSettings, interval_certifications
from twinproof.certification.method import CertificateSettings
from twinproof.errors import DataError
from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.certified import CertifiedSummary, answered_correctly, certified_curve, default_radii, summarize
from twinproof.files import sha256_file
from twinproof.guarantee import PROMISING, Guarantee, Kind, Status
from twinproof.reporting.numbers import file_down
from twinproof.reporting.words import RadiusWords, Undone
from twinproof.runs.layout import FORMAT
from twinproof.runs.records import ABSTAIN, Certificate

CURVE_POINTS = 200
BINS = 24
_UNCERTIFIED = "uncertified"
_STEPS = (5.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
_TABLE_ROWS = 5

Curve = Sequence[tuple[float, Interval]]


@dataclass(frozen=True)
class RadiusCounts:
    """How many inputs fall in each bin of radii, and how many got no answer; ``edges`` has one entry more than the counts."""

    edges: tuple[float, ...]
    correct: tuple[int, ...]
    wrong: tuple[int, ...]
    abstained: int


@dataclass(frozen=True)
class Certification:
    """Certificates made with one set of settings; without settings and certificates where nothing was certified.

    ``sha256`` is the digest of their lines; ``undone`` says why their promise is not shown as one. Certificates by interval
    bounds, for which nothing was drawn, have ``bounded`` instead of ``settings``.
    """

    name: str
    guarantee: Guarantee
    settings: CertificateSettings | None
    certificates: tuple[Certificate, ...]
    sha256: str | None
    undone: Undone | None = None
    bounded: IntervalSettings | None = None

    @property
    def made(self) -> CertificateSettings | IntervalSettings | None:
        """The settings of either kind."""
        return self.settings or self.bounded

    @property
    def shared_noise(self) -> bool:
        return self.settings is not None and self.settings.sampling.shared_noise

    @property
    def summary(self) -> CertifiedSummary | None:
        """The numbers of the certificates; None where there are none, or where they make no sense (``unusable``)."""
        return self._summary if isinstance(self._summary, CertifiedSummary) else None

    @property
    def unusable(self) -> str:
        """Why there is no summary: a report must be able to show a run that lies."""
        error = self._summary
        return f"{error.what} (got {error.got}, wanted {error.wanted})" if isinstance(error, DataError) else ""

    @cached_property
    def _summary(self) -> CertifiedSummary | DataError | None:
        if self.made is None or not self.certificates:
            return None
        radii = None if self.settings is None else default_radii(self.settings.decided_radius)
        try:
            return summarize(self.certificates, self.made, radii=radii)
        except DataError as error:
            return error

    @property
    def words(self) -> RadiusWords:
        norm = self.made.method.norm if self.made else "l2"
        return RadiusWords.of(norm, self.guarantee.status, self.undone, certain=self.bounded is not None)

    @property
    def promised(self) -> bool:
        return promised(self.guarantee, self.undone)

    @property
    def target(self) -> float | None:
        return self.settings.sampling.target_radius if self.settings else None

    @property
    def right_end(self) -> float:
        """Right end of radius axes: the largest radius found, or the largest possible one where none was."""
        found = max((certificate.radius for certificate in self.certificates), default=0.0)
        return found or (self.made.largest_radius if self.made else 0.0) or 1.0

    @property
    def decided_end(self) -> float:
        """Right end of curves and tables: where drawing stopped at a target radius, nothing is known beyond it."""
        return self.right_end if self.target is None else min(self.target, self.right_end)

    def decides(self, radius: float) -> bool:
        """Whether the certificates say how many inputs reach ``radius``."""
        return bool(self.certificates) and (self.target is None or radius <= self.target)

    def curve(self) -> list[tuple[float, Interval]]:
        """Certified accuracy at evenly spaced radii of six places, up to the largest; empty without certificates."""
        if not self.certificates:
            return []
        radii = [file_down(index / CURVE_POINTS * self.decided_end) for index in range(CURVE_POINTS + 1)]
        return certified_curve(self.certificates, radii)

    def table(self) -> list[tuple[float, Interval]]:
        return certified_curve(self.certificates, table_radii(self.decided_end))

    def radius_counts(self) -> RadiusCounts:
        """Radii of correct and wrong answers in bins of equal width."""
        width = self.right_end / BINS
        correct, wrong, silent = [0] * BINS, [0] * BINS, 0
        for certificate in self.certificates:
            if certificate.prediction == ABSTAIN:
                silent += 1
                continue
            place = min(int(certificate.radius / width), BINS - 1)
            (correct if answered_correctly(certificate) else wrong)[place] += 1
        return RadiusCounts(tuple(width * edge for edge in range(BINS + 1)), tuple(correct), tuple(wrong), silent)


def section(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def certifications(root: Path, run: Mapping[str, Any]) -> Iterator[Certification]:
    """All certifications of the run; at least one, without settings where there are none, for what ``run.json`` promises."""
    promises = section(section(run, "guarantees"), "robustness")
    drawn, bounded = method.certifications(root), interval_certifications(root)
    found: dict[str, method.Certification | IntervalCertification] = {**drawn, **bounded}
    if run.get("format") != FORMAT:  # formats 1 and 2 have one promise, before certification too
        promises = dict.fromkeys(found or (_UNCERTIFIED,), promises)
    for name in {**found, **promises} or (_UNCERTIFIED,):
        guarantee = recorded_guarantee(Kind.ROBUSTNESS, section(promises, name))
        one = found.get(name)
        if one is None:
            yield Certification(name, guarantee, None, (), None)
            continue
        digest = sha256_file(one.csv) if one.csv.is_file() else None
        lines = tuple(one.certificates) if digest else ()
        settings = drawn[name].settings if name in drawn else None
        yield Certification(
            name, guarantee, settings, lines, digest, bounded=bounded[name].settings if name in bounded else None
        )


def recorded_guarantee(kind: Kind, record: Mapping[str, Any]) -> Guarantee:
    """What ``run.json`` records of one promise."""
    assumptions = record.get("assumptions")
    return Guarantee(
        kind=kind,
        status=Status(record.get("status", Status.NONE)),
        promise=str(record.get("promise") or ""),
        theorem=str(record.get("theorem") or ""),
        assumptions=tuple(map(str, assumptions)) if isinstance(assumptions, list) else (),
        reason=str(record.get("reason") or ""),
        values=tuple((str(name), value) for name, value in section(record, "values").items()),
    )


def promised(guarantee: Guarantee, undone: Undone | None) -> bool:
    """Whether a guarantee is shown as a promise: its status claims one, and nothing undoes it."""
    return guarantee.status in PROMISING and undone is None


def table_radii(largest: float) -> list[float]:
    """A handful of round radii for a table: the multiples of 0.25 where they suffice, finer or coarser ones otherwise."""
    if 1.0 <= largest < 2.5:
        return default_radii(largest)
    step = next((step for step in _STEPS if largest / step >= _TABLE_ROWS - 1), _STEPS[-1])
    return [round(index * step, 6) for index in range(int(largest / step + 1e-9) + 1)][: 2 * _TABLE_ROWS]
