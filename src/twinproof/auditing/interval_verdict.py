"""What an audit of certificates by interval bounds found, as it lies on the disk.

Guarantees
    These certificates hold with certainty, so that no chance is weighed: ``refuted`` is whether there is a single flip, which
    is another answer of the network at a point that lies inside the radius as it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from twinproof.errors import RunError
from twinproof.guarantee import round_down
from twinproof.runs.layout import FORMAT, refuse_unknown_format
from twinproof.runs.reading import CLOSED, Count, Digest, Length, read_json
from twinproof.runs.records import AUDITS, WorkSettings, evidence, json_file

INTERVALS = "intervals"
"""The section of such a file; that of the others is ``certificates``."""
# Coordinates of points that a file holds at most: enough to look at some flips, whatever the size of an input.
_KEPT = 200_000


@dataclass(frozen=True)
class IntervalFlip:
    """Another ``answer`` of the network, at ``distance`` from an input whose certificate excludes it."""

    __pydantic_config__: ClassVar = CLOSED

    index: Count
    prediction: Count
    answer: Count
    distance: Length
    radius: Length

    @property
    def ratio(self) -> float:
        """How far away the other answer is, in radii, rounded down; 1 where a file that lies has no radius."""
        return round_down(self.distance / self.radius) if self.radius else 1.0


@dataclass(frozen=True)
class FoundFlip(IntervalFlip):
    """A flip that an audit found, with the ``point`` itself, in [0, 1] and as float32 holds it; only some files keep it."""

    point: tuple[float, ...] | None = None


@dataclass(frozen=True)
class IntervalBudget:
    """How hard was searched: gradient ``steps`` from each of ``restarts`` random points."""

    __pydantic_config__: ClassVar = CLOSED

    steps: Count = 100
    restarts: Count = 3


@dataclass(frozen=True, kw_only=True)
class IntervalAuditSettings(WorkSettings):
    """What all attacks of such an audit share; ``of`` names the certification."""

    of: str
    certificates_sha256: Digest
    settings_sha256: Digest
    norm: str
    attackable: Count
    budget: IntervalBudget


@dataclass(frozen=True)
class IntervalVerdict:
    """What the attacks say of all certificates together."""

    inputs: Count
    attacked: Count
    flips: Count
    refuted: bool
    verdict: str

    @classmethod
    def of(cls, settings: IntervalAuditSettings, flips: int) -> IntervalVerdict:
        """One flip refutes."""
        words = "nothing to attack" if not settings.attackable else "refuted" if flips else "not refuted"
        return cls(settings.inputs, settings.attackable, flips, flips > 0, words)


@dataclass(frozen=True)
class IntervalAudit:
    """An audit of certificates by interval bounds, by its name."""

    name: str
    settings: IntervalAuditSettings
    flips: tuple[FoundFlip, ...]
    verdict: IntervalVerdict

    def content(self) -> bytes:
        """The file."""
        section = {**asdict(self.settings), "flips": [asdict(one) for one in self.flips], "verdict": asdict(self.verdict)}
        return json_file({"format": FORMAT, INTERVALS: section})


def keep_some_points(flips: Sequence[FoundFlip]) -> tuple[FoundFlip, ...]:
    """The flips, of which the first ones keep their points: at least one, so that a refutation can be checked."""
    size = max((len(one.point) for one in flips if one.point is not None), default=1)
    kept = max(1, _KEPT // size)
    return tuple(one if at < kept else replace(one, point=None) for at, one in enumerate(flips))


@dataclass(frozen=True, kw_only=True)
class _Section(IntervalAuditSettings):
    flips: tuple[FoundFlip, ...]
    verdict: IntervalVerdict


class _AuditFile(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    intervals: dict[str, Any]


def is_interval_audit(path: Path) -> bool:
    """Whether the file of an audit is one of certificates by interval bounds."""
    return INTERVALS in read_json(path).record


def read_interval_audit(path: Path, name: str) -> IntervalAudit:
    """The content of such a file; refused where the audit is of another kind."""
    found = read_json(path, fix="move the file away and audit again")
    refuse_unknown_format(path, found.record.get("format"))
    if INTERVALS not in found.record:
        raise RunError(
            "this run has an audit of another kind under that name",
            where=str(path),
            got="randomized smoothing",
            wanted="interval bounds",
            fix="--overwrite replaces it; --name keeps both",
        )
    inner = found.inside(INTERVALS, found.typed(_AuditFile).intervals).typed(_Section)
    settings = IntervalAuditSettings(**{field.name: getattr(inner, field.name) for field in fields(IntervalAuditSettings)})
    return IntervalAudit(name, settings, inner.flips, inner.verdict)


def interval_audits_of(root: str | Path) -> dict[str, IntervalAudit]:
    """Those of a run, by name."""
    found = {name: path for name, path in evidence(Path(root), AUDITS).items() if is_interval_audit(path)}
    return {name: read_interval_audit(path, name) for name, path in found.items()}
