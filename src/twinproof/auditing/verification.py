"""What a verification found: problems, the checks that were made, and the numbers that were recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

MOST_PROBLEMS = 1000
"""Problems of one check that are listed: a file may hold millions."""


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it must be: in which file, what, what was got and what was wanted."""

    file: str
    what: str
    got: str
    wanted: str


@dataclass(frozen=True)
class Check:
    """One question that was asked of the run, and whether every answer was right."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verification:
    """The outcome for one run. Numbers that could not be recomputed are None; epsilons are rounded up and may be infinite.

    ``not_checked`` names what this verification did not look at, in a few words each: nothing of it is verified.
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
        """The outcome as plain JSON values (an infinite epsilon is null); the keys never change their meaning."""
        record = asdict(self)
        for name in ("epsilon", "epsilon_rdp"):
            record[name] = record[name] if record[name] is not None and math.isfinite(record[name]) else None
        record["problems"] = [asdict(problem) for problem in self.problems]
        record["checks"] = [asdict(check) for check in self.checks]
        record["not_checked"] = list(self.not_checked)
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
        """Notes the check ``name``; it passed if ``problems`` is empty. ``detail`` says what was looked at."""
        found = list(islice(problems, MOST_PROBLEMS + 1))
        if len(found) > MOST_PROBLEMS:
            what = "there are more problems of this kind than are listed"
            found[MOST_PROBLEMS:] = [Problem(found[-1].file, what, f"more than {MOST_PROBLEMS}", "none")]
        self.problems += found
        self.checks.append(Check(name, not found, detail if not found else f"{detail}; problems: {len(found)}"))
        return not found
