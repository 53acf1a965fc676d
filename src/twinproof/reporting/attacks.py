"""What attacks found: accuracy under attack, answers that contradict a certificate, and audits of certificates."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from twinproof.auditing.certificate_verdict import FLIPPED, AttackedCertificate, CertificateAudit, nothing_inside
from twinproof.auditing.interval_verdict import IntervalAudit
from twinproof.data.record import Dataset
from twinproof.errors import UserError
from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.attack_record import AttackLine, Attacks, AttackSettings
from twinproof.evaluation.attack_results import Scores, attack_results, budget
from twinproof.evaluation.certified import CertifiedLine, already_refuted, answered_correctly, certified_curve, line_of, reach
from twinproof.evaluation.protocols import CLEAN, Protocol, Target, size_name
from twinproof.reporting.evidence import Certification
from twinproof.reporting.examples import misfit
from twinproof.runs.records import Certificate

CURVE_POINTS = 120
BINS_PER_RADIUS = 8
SHOWN = 9


@dataclass(frozen=True)
class ProtocolFacts:
    """What the attacks of one protocol left, by name (``pgd``, ``pgd on smoothed``); ``worst`` is that of the adaptive ones."""

    attacks: dict[str, Scores]
    worst: Scores | None = None


@dataclass(frozen=True)
class SizeFacts:
    """The results of one size, as attacks.json has them; see docs/formats/run.md."""

    size: float
    certified: Interval
    flips: int
    flips_probability: float
    crossing: bool
    paper: ProtocolFacts | None = None
    adaptive: ProtocolFacts | None = None
    difference: dict[str, float] | None = None

    @property
    def worst(self) -> Scores | None:
        """For each input the worst of all adaptive attacks."""
        return self.adaptive.worst if self.adaptive else None

    @property
    def entries(self) -> list[tuple[str, str, Scores]]:
        """Every attack: its protocol, its name with what was attacked, and what it left."""
        papers = {f"{name} on {Target.NETWORK}": scores for name, scores in self.paper.attacks.items()} if self.paper else {}
        adaptive = self.adaptive.attacks if self.adaptive else {}
        both = ((Protocol.PAPER, papers), (Protocol.ADAPTIVE, adaptive))
        return [(str(protocol), name, scores) for protocol, found in both for name, scores in found.items()]

    def lowest(self, protocol: str, measure: str, attack: str | None = None) -> Interval | None:
        """The lowest ``smoothed``, ``network`` or ``certified`` share that an attack of the protocol left."""
        found = [one for one in self.entries if one[0] == protocol and attack in (None, one[1].partition(" on ")[0])]
        shares: list[Interval] = [getattr(scores, measure) for _, _, scores in found]
        return min(shares, key=lambda share: share.value, default=None)


@dataclass(frozen=True)
class Results:
    """The results of one evaluation."""

    clean: Scores
    sizes: tuple[SizeFacts, ...]
    warnings: tuple[str, ...] = ()


_RESULTS = TypeAdapter(Results)


@dataclass(frozen=True)
class AttackedExample:
    """An attacked input (``stored``, in levels; None where its file does not hold it) and its lines with and without attack."""

    line: AttackLine
    clean: AttackLine
    stored: NDArray[Any] | None


class Culprit(StrEnum):
    """Which of the two is wrong where an attack contradicts certificates."""

    CERTIFICATES = "certificates"
    ATTACK = "attack"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CrossingEvidence:
    """How many attacked inputs contradict a certificate, and how many of them lie outside the ball (None: not measured)."""

    contradictions: int
    outside: int | None

    @property
    def culprit(self) -> Culprit:
        """The attack, where it left its ball; the certificates, where it did not; unknown without the inputs."""
        if self.outside is None or not self.contradictions:
            return Culprit.UNKNOWN
        return Culprit.ATTACK if self.outside else Culprit.CERTIFICATES


@dataclass(frozen=True)
class AttackFacts:
    """One evaluation under attack, compared with the certificates of the run.

    ``recorded`` is what attacks.json says; ``follows`` says whether the lines and the certificates still give that. ``crossed``
    are the sizes at which more certificates are contradicted than chance explains, and ``contradictions`` the attacked inputs
    that do it: by the lines and certificates themselves, whatever the record says, where these can be counted. ``certificates``
    are those of the attacked inputs. ``expected`` says that the bound of the radii is known to be false.
    """

    name: str
    certification: str
    expected: bool
    settings: AttackSettings
    recorded: Mapping[str, Any]
    results: Results
    follows: bool
    crossed: tuple[SizeFacts, ...]
    certificates: tuple[Certificate, ...]
    examples: tuple[AttackedExample, ...]
    contradictions: tuple[AttackedExample, ...]

    @property
    def refutes(self) -> bool:
        return bool(self.crossed)

    @property
    def line_above(self) -> bool:
        """Whether the certified line lies above a curve although nothing is contradicted: abstentions do that."""
        line = self.certified_line()
        above = bool(line) and line[0][1].value > self.results.clean.smoothed.value
        above |= any(one.worst is not None and one.certified.value > one.worst.smoothed.value for one in self.results.sizes)
        return above and not self.refutes

    def certified_line(self) -> list[tuple[float, Interval]]:
        """Share of the attacked inputs that is certified against each size, from 0 on; empty where it is not known."""
        if not self.follows or not self.certificates:
            return []
        sizes = [self.settings.plan.sizes[-1] * point / CURVE_POINTS for point in range(CURVE_POINTS + 1)]
        shares = certified_curve(self.certificates, [needed_radius(self.settings, size) for size in sizes])
        return [(size, share) for size, (_, share) in zip(sizes, shares, strict=True)]

    def needed_radius(self, size: float) -> float:
        """The radius, in the certificates' norm, that covers an attack of that size."""
        return needed_radius(self.settings, size)

    def where(self, size: float) -> str:
        """A size in words: ``l2 size 0.25``."""
        return f"{self.settings.plan.norm} size {size_name(size)}"

    def evidence(self, dataset: Dataset | None) -> CrossingEvidence:
        """Measures every attacked input that contradicts a certificate against its original: exactly, in stored levels."""
        found = self.contradictions
        arrays = [example.stored for example in found if example.stored is not None]
        usable = dataset is not None and not misfit(dataset, [example.clean for example in found])
        if dataset is None or not usable or len(arrays) < len(found) or dataset.levels != self.settings.noise.levels:
            return CrossingEvidence(len(found), None)
        if any(array.shape != dataset.shape for array in arrays):
            return CrossingEvidence(len(found), None)
        originals = (dataset.test.inputs[example.line.index] for example in found)
        cases = zip(found, arrays, originals, strict=True)
        outside = (_outside(self.settings, one.line.size, array, original) for one, array, original in cases)
        return CrossingEvidence(len(found), sum(outside))


@dataclass(frozen=True)
class RatioCounts:
    """Closest changes of the answer by their distance in radii: inside the radius, beyond it, and none found."""

    edges: tuple[float, ...]
    inside: tuple[int, ...]
    beyond: tuple[int, ...]
    not_found: int


@dataclass(frozen=True)
class AuditFacts:
    """An audit of certificates; ``certification`` names those of the run, None where the run no longer holds them."""

    name: str
    certification: str | None
    expected: bool
    audit: CertificateAudit
    levels: int | None

    @property
    def refutes(self) -> bool:
        return self.certification is not None and self.audit.verdict is not None and self.audit.verdict.refuted

    @property
    def flipped(self) -> list[AttackedCertificate]:
        return [one for one in self.audit.attacked if one.verdict == FLIPPED]

    @property
    def nothing_inside(self) -> int:
        """Certificates that nothing could contradict, because no other input fits into their radius."""
        return 0 if self.levels is None else nothing_inside(self.audit.attacked, self.levels)

    def ratios(self) -> RatioCounts:
        """The histogram; the radius itself is an edge, and the last bin holds everything further away."""
        bins = max(1, math.ceil(self.audit.settings.outward * BINS_PER_RADIUS))
        inside, beyond, not_found = [0] * bins, [0] * bins, 0
        for one in self.audit.attacked:
            if one.flip is None:
                not_found += 1
                continue
            place = min(int(one.flip.ratio * BINS_PER_RADIUS), bins - 1)
            (inside if one.verdict == FLIPPED else beyond)[place] += 1
        return RatioCounts(tuple(edge / BINS_PER_RADIUS for edge in range(bins + 1)), tuple(inside), tuple(beyond), not_found)


@dataclass(frozen=True)
class IntervalAuditFacts:
    """An audit of certificates by interval bounds, of which one flip is a defect; ``certification`` as in ``AuditFacts``."""

    name: str
    certification: str | None
    audit: IntervalAudit
    expected: ClassVar[bool] = False

    @property
    def refutes(self) -> bool:
        return self.certification is not None and self.audit.verdict.refuted


def attack_facts(attacks: Attacks, certifications: Sequence[Certification]) -> AttackFacts:
    """Holds attacks against the certification that they name, or else that of their norm, or the first."""
    settings, results, lines = attacks.settings, attacks.results, attacks.lines
    named = [one for one in certifications if one.name == settings.certificates]
    suitable = [one for one in certifications if one.settings and one.settings.method.norm == settings.method.norm]
    certified = (named or suitable or certifications)[0]
    about = certified.settings
    line = None if about is None else line_of(about, certified.certificates, settings.network.model_sha256)
    held = _held(lines, line)
    counted = _counted(settings, lines, line)
    crossed = tuple(one for one in _RESULTS.validate_python(counted or results).sizes if one.crossing)
    against = [one for size in crossed for one in contradicting(lines, size.size, _covered(settings, size.size, held))]
    chosen = choose_attacked(lines)
    arrays = attacks.inputs if chosen or against else {}
    return AttackFacts(
        name=attacks.name,
        certification=certified.name,
        expected=about is not None and already_refuted(about),
        settings=settings,
        recorded=results,
        results=_RESULTS.validate_python(results),
        follows=counted == results,
        crossed=crossed,
        certificates=held,
        examples=with_inputs(chosen, lines, arrays),
        contradictions=with_inputs(against, lines, arrays),
    )


def audit_facts(audit: CertificateAudit, certifications: Sequence[Certification]) -> AuditFacts:
    """Finds the certificates that the audit is about by their digest."""
    about = next((one for one in certifications if one.sha256 == audit.settings.certificates_sha256), None)
    settings = None if about is None else about.settings
    return AuditFacts(
        name=audit.name,
        certification=None if about is None else about.name,
        expected=settings is not None and already_refuted(settings),
        audit=audit,
        levels=None if settings is None else settings.noise.levels,
    )


def interval_audit_facts(audit: IntervalAudit, certifications: Sequence[Certification]) -> IntervalAuditFacts:
    """Finds the certificates that the audit is about by their digest."""
    about = next((one.name for one in certifications if one.sha256 == audit.settings.certificates_sha256), None)
    return IntervalAuditFacts(audit.name, about, audit)


def needed_radius(settings: AttackSettings, size: float) -> float:
    """The radius, in the certificates' norm, that covers an attack of that size."""
    return reach(settings.plan.norm, size, settings.method.norm, settings.dimension)


def choose_attacked(lines: Sequence[AttackLine], count: int = SHOWN) -> list[AttackLine]:
    """At most ``count`` lines of attacks that misled the smoothed classifier, by the rule that the page states."""
    clean = _clean_lines(lines)
    place = {name: order for order, name in enumerate(dict.fromkeys(line.entry for line in lines))}
    misled = [line for line in lines if line.misled and line.index in clean and clean[line.index].correct]
    misled.sort(key=lambda line: (line.size, line.index, line.protocol != Protocol.ADAPTIVE, place[line.entry]))
    first: dict[int, AttackLine] = {}
    for line in misled:
        first.setdefault(line.index, line)
    return list(first.values())[:count]


def contradicting(lines: Sequence[AttackLine], size: float, covered: Collection[int]) -> list[AttackLine]:
    """Lines of one size with a wrong answer at an input whose certificate (its number is in ``covered``) excludes it."""
    return [line for line in lines if line.size == size and line.misled and line.index in covered]


def with_inputs(
    chosen: Sequence[AttackLine], lines: Sequence[AttackLine], arrays: Mapping[str, NDArray[Any]]
) -> tuple[AttackedExample, ...]:
    """The chosen lines with their attacked inputs; tensors hold the inputs in the order of their lines."""
    clean = _clean_lines(lines)
    rows: dict[str, dict[int, int]] = {}
    for line in lines:
        entry = rows.setdefault(line.entry, {})
        entry.setdefault(line.index, len(entry))

    def stored(line: AttackLine) -> NDArray[Any] | None:
        array, places = arrays.get(line.entry), rows[line.entry]
        return array[places[line.index]] if array is not None and len(array) == len(places) else None

    return tuple(AttackedExample(line, clean[line.index], stored(line)) for line in chosen if line.index in clean)


def _clean_lines(lines: Sequence[AttackLine]) -> dict[int, AttackLine]:
    return {line.index: line for line in lines if line.entry == CLEAN.name}


def _held(lines: Sequence[AttackLine], line: CertifiedLine | None) -> tuple[Certificate, ...]:
    """The certificates of the attacked inputs: the run's, or those made of them before attacking."""
    clean = _clean_lines(lines)
    if line is not None:
        return tuple(one for one in line.certificates if one.index in clean)
    return tuple(
        Certificate(one.index, one.label, one.prediction, one.votes, one.top, one.radius, one.draws) for one in clean.values()
    )


def _covered(settings: AttackSettings, size: float, held: Sequence[Certificate]) -> set[int]:
    needed = needed_radius(settings, size)
    return {one.index for one in held if answered_correctly(one) and one.radius >= needed}


def _counted(settings: AttackSettings, lines: Sequence[AttackLine], line: CertifiedLine | None) -> dict[str, Any] | None:
    """The results that the lines and certificates give now, or None where lines are missing or do not belong together."""
    try:
        return attack_results(settings, lines, line)
    except (UserError, ValueError, KeyError, IndexError):
        return None


def _outside(settings: AttackSettings, size: float, attacked: NDArray[Any], original: NDArray[Any]) -> bool:
    moves: list[int] = np.abs(attacked.astype(np.int64) - original.astype(np.int64)).ravel().tolist()
    norm = settings.plan.norm
    spent = max(moves, default=0) if norm == "linf" else sum(move * move for move in moves) if norm == "l2" else sum(moves)
    return spent > budget(norm, size, settings.noise.levels)
