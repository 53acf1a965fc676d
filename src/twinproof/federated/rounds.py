"""What happened in each round, for the coordinator alone: who was counted, who was refused and why, who did not answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from twinproof.files import append_line, canonical_json, write_atomic
from twinproof.runs.reading import Count, read_lines

FILE = "rounds.jsonl"


@dataclass(frozen=True)
class Refusal:
    """A party whose reply was not counted, and why. Both came from outside: they are made fit to be shown before."""

    party: str
    reason: str


@dataclass(frozen=True)
class Round:
    """One round. Sensitive: how many records a party drew depends on its records; it goes to ``private/`` and nowhere else."""

    step: int
    drawn: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    missing: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """A line of the file."""
        refused = [{"party": one.party, "reason": one.reason} for one in self.refused]
        return {"step": self.step, "drawn": dict(self.drawn), "refused": refused, "missing": list(self.missing)}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Round:
        """Reads ``as_dict`` back."""
        refused = tuple(Refusal(one["party"], one["reason"]) for one in line["refused"])
        return cls(line["step"], dict(line["drawn"]), refused, tuple(line["missing"]))


class _Refused(BaseModel):
    party: str
    reason: str


class _Line(BaseModel):
    step: Count
    drawn: dict[str, Count]
    refused: list[_Refused]
    missing: list[str]


class RoundLog:
    """Writes ``private/rounds.jsonl``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def rewind(self, steps: int) -> None:
        """Forgets rounds whose step will be taken again."""
        kept = [line for line in read_lines(self._path, _Line) if line["step"] < steps]
        write_atomic(self._path, "".join(canonical_json(line) + "\n" for line in kept).encode())

    def add(self, happened: Round) -> None:
        """Adds a round."""
        append_line(self._path, canonical_json(happened.as_dict()))


def read_rounds(private: Path) -> list[Round]:
    """All rounds of a run, from its private folder; none where it was not federated."""
    return [Round.from_dict(line) for line in read_lines(private / FILE, _Line)]
