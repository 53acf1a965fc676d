"""What a report says about a run under attack, read from its released files and held against its certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.certification.record import CertificateSettings
from twinproof.errors import UserError
from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.attack_record import AttackLine, AttackSettings, attacks_of
from twinproof.evaluation.attack_results import Scores, attack_results
from twinproof.evaluation.certified import CertifiedLine, answered_correctly, certified_curve, line_of, reach
from twinproof.evaluation.protocols import Protocol, Target, size_name
from twinproof.reporting.attack_examples import AttackedExample, choose_attacked, clean_lines, contradicting, with_inputs
from twinproof.runs.certificates import Certificate

CURVE_POINTS = 120
_SCORES = ("smoothed", "network", "abstained", "certified")


@dataclass(frozen=True)
class EntryScores:
    """One attack by itself: what was attacked (``target``), how (``attack``), and what is left."""

    protocol: str
    attack: str
    target: str
    scores: Scores


@dataclass(frozen=True)
class SizeFacts:
    """The results of one size; see docs/formats/run.md. ``worst`` and ``difference`` need the protocols they speak of."""

    size: float
    certified: Interval
    certified_inputs: int
    entries: tuple[EntryScores, ...]
    worst: Scores | None
    difference: Mapping[str, float] | None
    flips: int
    flips_probability: float
    crossing: bool

    def of(self, protocol: str) -> list[EntryScores]:
        """The attacks of one protocol."""
        return [entry for entry in self.entries if entry.protocol == protocol]

    def lowest(self, protocol: str, measure: str, attack: str | None = None) -> Interval | None:
        """The lowest ``smoothed``, ``network`` or ``certified`` share that an attack of the protocol left."""
        found = [entry.scores for entry in self.of(protocol) if attack in (None, entry.attack)]
        shares: list[Interval] = [getattr(scores, measure) for scores in found]
        return min(shares, key=lambda share: share.value, default=None)


@dataclass(frozen=True)
class AttackFacts:
    """A run under attack as the report sees it.

    ``follows`` says whether the recorded results are those that the lines and the certificates give now; ``certificates`` are
    those of the attacked inputs. ``crossed`` are the sizes at which the line is crossed, and ``contradictions`` the attacked
    inputs that cross it: by the lines and certificates themselves where these can be counted, whatever the record says.
    ``examples`` are the attacked inputs that are shown.
    """

    settings: AttackSettings
    results: Mapping[str, Any]
    clean: Scores
    sizes: tuple[SizeFacts, ...]
    follows: bool
    crossed: tuple[SizeFacts, ...]
    certificates: tuple[Certificate, ...]
    examples: tuple[AttackedExample, ...]
    contradictions: tuple[AttackedExample, ...]

    @property
    def crossing(self) -> bool:
        """Whether an attack got under the certified line more often than chance explains."""
        return bool(self.crossed)

    @property
    def warnings(self) -> list[str]:
        """What the evaluation itself warned of."""
        return [str(warning) for warning in self.results.get("warnings", [])]

    def certified_line(self) -> list[tuple[float, Interval]]:
        """Share of the attacked inputs that is certified against each size, from 0 on; empty where it is not known."""
        if not self.follows or not self.certificates:
            return []
        settings = self.settings
        sizes = [settings.plan.sizes[-1] * point / CURVE_POINTS for point in range(CURVE_POINTS + 1)]
        shares = certified_curve(self.certificates, [needed_radius(settings, size) for size in sizes])
        return [(size, share) for size, (_, share) in zip(sizes, shares, strict=True)]

    def where(self, size: float) -> str:
        """A size in words: ``l2 size 0.25``."""
        return f"{self.settings.plan.norm} size {size_name(size)}"


def load_attacks(root: Path, certified: CertificateSettings | None, certificates: Sequence[Certificate]) -> AttackFacts | None:
    """Reads the attacks of the run in ``root``, or None where it was not attacked; a RunError where their files are broken."""
    record = next(iter(attacks_of(root).values()), None)
    if record is None:
        return None
    clean = _scores(record.results["clean"])
    sizes = tuple(_size(result) for result in record.results["sizes"])
    lines = record.lines
    line = _line(record.settings, certified, certificates)
    held = _held(lines, line)
    counted = _counted(record.settings, lines, line)
    now = sizes if counted is None else tuple(_size(result) for result in counted["sizes"])
    crossed = tuple(one for one in now if one.crossing)
    against = [one for size in crossed for one in contradicting(lines, size.size, _covered(record.settings, size, held))]
    chosen = choose_attacked(lines)
    arrays = record.inputs if chosen or against else {}
    return AttackFacts(
        settings=record.settings,
        results=record.results,
        clean=clean,
        sizes=sizes,
        follows=counted == record.results,
        crossed=crossed,
        certificates=held,
        examples=with_inputs(chosen, lines, arrays),
        contradictions=with_inputs(against, lines, arrays),
    )


def needed_radius(settings: AttackSettings, size: float) -> float:
    """The radius, in the certificates' norm, that covers an attack of that size."""
    return reach(settings.plan.norm, size, settings.method.norm, settings.dimension)


def _size(result: Mapping[str, Any]) -> SizeFacts:
    entries = []
    if result.get("paper"):
        for name, scores in result["paper"]["attacks"].items():
            entries.append(EntryScores(Protocol.PAPER, name, Target.NETWORK, _scores(scores)))
    if result.get("adaptive"):
        for name, scores in result["adaptive"]["attacks"].items():
            attack, _, target = name.partition(" on ")
            entries.append(EntryScores(Protocol.ADAPTIVE, attack, target, _scores(scores)))
    return SizeFacts(
        size=float(result["size"]),
        certified=_interval(result["certified"]),
        certified_inputs=int(result["certified"]["inputs"]),
        entries=tuple(entries),
        worst=_scores(result["adaptive"]["worst"]) if result.get("adaptive") else None,
        difference={name: float(value) for name, value in result["difference"].items()} if result.get("difference") else None,
        flips=int(result["flips"]),
        flips_probability=float(result["flips_probability"]),
        crossing=bool(result["crossing"]),
    )


def _scores(record: Mapping[str, Any]) -> Scores:
    return Scores(**{name: _interval(record[name]) for name in _SCORES}, inputs=int(record["inputs"]))


def _interval(record: Mapping[str, Any]) -> Interval:
    return Interval(*(float(record[name]) for name in ("value", "low", "high", "confidence")))


def _line(
    settings: AttackSettings, certified: CertificateSettings | None, certificates: Sequence[Certificate]
) -> CertifiedLine | None:
    """The run's certificates, where attacks can be held against them."""
    return None if certified is None else line_of(certified, certificates, settings.network.model_sha256)


def _held(lines: Sequence[AttackLine], line: CertifiedLine | None) -> tuple[Certificate, ...]:
    """The certificates that the attacked inputs are held against: the run's, or those made of them before attacking."""
    clean = clean_lines(lines)
    if line is not None:
        return tuple(one for one in line.certificates if one.index in clean)
    return tuple(
        Certificate(one.index, one.label, one.prediction, one.votes, one.top, one.radius, one.draws) for one in clean.values()
    )


def _covered(settings: AttackSettings, size: SizeFacts, held: Sequence[Certificate]) -> set[int]:
    needed = needed_radius(settings, size.size)
    return {one.index for one in held if answered_correctly(one) and one.radius >= needed}


def _counted(settings: AttackSettings, lines: Sequence[AttackLine], line: CertifiedLine | None) -> dict[str, Any] | None:
    """The results that the lines and certificates give now, or None where lines are missing or do not belong together."""
    try:
        return attack_results(settings, lines, line)
    except (UserError, ValueError, KeyError, IndexError):
        return None
