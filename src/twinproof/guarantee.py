"""What is promised, to whom, under which assumptions, by which theorem: a typed record with a status.

The words of ``Status`` are the only ones used anywhere for how far a promise may be trusted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How far a promise may be trusted."""

    PROVEN = "proven"  # a theorem, and tests in this repository that could refute it
    PUBLISHED = "published"  # a paper's claim, not proven by us
    ASSUMED = "assumed"  # the theorem holds if an assumption does that the card names and that we could not check
    REFUTED = "refuted"  # shown false by an audit or a counter-example
    NONE = "none"  # nothing is promised


class Kind(StrEnum):
    """Which of the two proofs a guarantee speaks of."""

    PRIVACY = "privacy"
    ROBUSTNESS = "robustness"


@dataclass(frozen=True)
class Guarantee:
    """One promise. ``values`` holds its numbers (epsilon, delta, sigma, alpha...), already rounded in the safe direction."""

    kind: Kind
    status: Status
    promise: str
    theorem: str = ""
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    values: tuple[tuple[str, float | str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        record = asdict(self)
        record["kind"], record["status"] = str(self.kind), str(self.status)
        record["assumptions"] = list(self.assumptions)
        record["values"] = dict(self.values)
        return record
