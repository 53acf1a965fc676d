"""What a verification found: problems, the checks that were made, and the numbers that were recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

MOST_PROBLEMS = 1000
"""How many problems of one check are listed: a file may hold millions."""


class VerifyError(Exception):
    """The verification cannot be made at all: there is no run, it is not finished, or it is of a newer format."""

    def __init__(self, what: str, *, where: str = "", got: str = "", wanted: str = "", fix: str = "") -> None:
        self.what, self.where, self.got, self.wanted, self.fix = what, where, got, wanted, fix
        lines = [f"  {name}: {value}" for name, value in self.as_dict().items() if value and name != "what"]
        super().__init__("\n".join([what, *lines]))

    def as_dict(self) -> dict[str, str]:
        """The fields for machines; the keys never change their meaning."""
        return {"what": self.what, "where": self.where, "got": self.got, "wanted": self.wanted, "fix": self.fix}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: in which file, what, the value found and the value expected."""

    file: str
    what: str
    got: str
    wanted: str


@dataclass(frozen=True)
class Check:
    """One question that was asked of the run, and whether it passed."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verification:
    """The outcome for one run. Numbers that could not be recomputed are None; epsilons are rounded up and may be infinite.

    ``not_checked`` names what this verification did not look at: nothing of it is verified.
    """

    run: str
    problems: tuple[Problem, ...]
    checks: tuple[Check, ...]
    epsilon: float | None
    epsilon_rdp: float | None
    delta: float | None
    steps: int | None
    certificates: int
    not_checked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON values (an infinite epsilon is null); the keys never change their meaning."""
        record: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }
        for name in ("epsilon", "epsilon_rdp"):
            record[name] = record[name] if record[name] is not None and math.isfinite(record[name]) else None
        return {"ok": self.ok, **record}


@dataclass
class Findings:
    """Collects checks, and what was left unchecked, in the order they are made."""

    problems: list[Problem] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def leave(self, what: str) -> None:
        """Notes that ``what`` is not checked."""
        self.unchecked.append(what)

    def check(self, name: str, problems: Iterable[Problem], detail: str) -> bool:
        """Notes the check ``name``, which passes if there are no ``problems``. ``detail`` says what was looked at."""
        found = list(islice(problems, MOST_PROBLEMS + 1))
        if len(found) > MOST_PROBLEMS:
            what = "there are more problems of this kind than are listed"
            found[MOST_PROBLEMS:] = [Problem(found[-1].file, what, f"more than {MOST_PROBLEMS}", "none")]
        self.problems += found
        self.checks.append(Check(name, not found, f"{detail}; problems: {len(found)}" if found else detail))
        return not found
