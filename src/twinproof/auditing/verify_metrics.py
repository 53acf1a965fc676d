"""The progress file: lines that parse, steps that grow, an epsilon that never shrinks and never passes the final one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof.auditing.evidence import cut_off, parse_object, shown, whole_lines
from twinproof.auditing.fields import (
    Field,
    field_problems,
    is_count,
    is_not_negative,
    is_number,
    is_probability,
    number,
    or_null,
)
from twinproof.auditing.verification import Problem

FILE = "metrics.jsonl"
LINE = (
    Field("step", is_count, "an integer from 0"),
    Field("epoch", is_not_negative, "a number from 0"),
    Field("epsilon", or_null(is_not_negative), "a number from 0, or null without privacy"),
    Field("test_accuracy", is_probability, "a number from 0 to 1"),
    Field("test_loss", is_number, "a finite number"),
    # Written by earlier versions; how long a step takes tells how many records it drew.
    Field("rate", or_null(is_not_negative), "steps per second", optional=True),
)


def metrics_problems(content: bytes, *, privacy: dict[str, Any] | None) -> Iterator[Problem]:
    """Every line on its own, then each against the one before and against what run.json says in the end."""
    if rest := cut_off(content):
        yield Problem(FILE, "the last line is cut off", shown(rest.decode("ascii", "replace")), "a final newline")
    last_step, last_epsilon = -1, 0.0
    for row, text in enumerate(whole_lines(content), start=1):
        where = f"line {row}: "
        line = parse_object(text)
        if isinstance(line, str):
            yield Problem(FILE, f"{where}this is no JSON object", line, "one JSON object a line")
            continue
        faults = list(field_problems(FILE, line, LINE, where=where, closed=True))
        yield from faults
        if faults:
            continue
        if line["step"] <= last_step:
            yield Problem(FILE, f"{where}steps do not grow", str(line["step"]), f"above {last_step}")
        last_step = line["step"]
        yield from _epsilon_problems(where, line, last_epsilon, privacy)
        last_epsilon = max(last_epsilon, number(line["epsilon"]) or 0.0)


def _epsilon_problems(where: str, line: dict[str, Any], last: float, privacy: dict[str, Any] | None) -> Iterator[Problem]:
    epsilon = number(line["epsilon"])
    if (epsilon is None) != (privacy is None):
        wanted = "null without privacy" if privacy is None else "the epsilon spent so far"
        yield Problem(FILE, f"{where}epsilon does not fit the recipe", shown(line["epsilon"]), wanted)
    if epsilon is None or privacy is None:
        return
    if epsilon < last:
        yield Problem(FILE, f"{where}epsilon shrinks, but nothing spent comes back", repr(epsilon), f"at least {last!r}")
    final, steps = number(privacy.get("epsilon")), number(privacy.get("steps"))
    if final is not None and epsilon > final:
        yield Problem(FILE, f"{where}epsilon is above the final one of run.json", repr(epsilon), f"at most {final!r}")
    if steps is not None and line["step"] > steps:
        yield Problem(FILE, f"{where}the step lies behind the last one of run.json", str(line["step"]), f"at most {steps:.0f}")
