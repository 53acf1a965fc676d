"""The ledger as its format document describes it: a hash chain, a small grammar, and step blocks without gap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twinproof.auditing.evidence import cut_off, digest_of, parse_object, shown, whole_lines
from twinproof.auditing.fields import (
    FORMAT,
    Field,
    field_problems,
    is_count,
    is_digest,
    is_not_negative,
    is_object,
    is_open_probability,
    is_positive,
    is_positive_count,
    is_rate,
    is_text,
    number,
    or_null,
)
from twinproof.auditing.verification import MOST_PROBLEMS, Problem

FILE = "ledger.jsonl"
NEIGHBOURS = {1: "add-or-remove-one", 2: "replace-by-null"}
"""What neighbouring data sets are called in each format. Both cost the same (docs/formats/run.md)."""
FIRST_PREVIOUS = "0" * 64

_DIGEST = "64 lower-case hexadecimal digits"
LINE = (
    Field("index", is_count, "the line number, from 0"),
    Field("kind", is_text, "the name of an event"),
    Field("body", is_object, "an object"),
    Field("previous", is_digest, _DIGEST),
    Field("hash", is_digest, _DIGEST),
)
BODIES = {
    "open": (
        FORMAT,
        Field("config_sha256", is_digest, _DIGEST),
        Field("delta", or_null(is_open_probability), "a number between 0 and 1, or null without privacy"),
        Field(
            "neighbours",
            lambda value: isinstance(value, str) and value in NEIGHBOURS.values(),
            " or ".join(NEIGHBOURS.values()),
        ),
    ),
    "gaussian": (
        Field("noise_multiplier", is_positive, "a positive number"),
        Field("purpose", is_text, "what the mechanism was used for"),
    ),
    "laplace": (
        Field("noise_multiplier", is_positive, "a positive number"),
        Field("purpose", is_text, "what the mechanism was used for"),
    ),
    "poisson-gaussian": (
        Field("sample_rate", is_rate, "above 0 and at most 1"),
        Field("noise_multiplier", is_positive, "a positive number"),
        Field("first_step", is_count, "the sum of the steps before"),
        Field("steps", is_positive_count, "at least 1"),
    ),
    "close": (
        Field("steps", is_count, "the sum of all blocks"),
        Field("model_sha256", is_digest, _DIGEST),
        Field("epsilon", or_null(is_not_negative), "a number from 0, or null without privacy"),
        Field("epsilon_rdp", or_null(is_not_negative), "a number from 0, or null without privacy"),
    ),
}


@dataclass(frozen=True)
class Spending:
    """One event of the ledger: ``steps`` Gaussian mechanisms, each on a Poisson sample (rate 1: on all records).

    ``purpose`` is what a mechanism on all records was used for; ``laplace`` says that its noise is Laplace's, whose multiplier
    is a scale over an l1 sensitivity and compares with no other one.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    sampled: bool
    purpose: str = ""
    laplace: bool = False


@dataclass(frozen=True)
class Ledger:
    """What a ledger says. ``countable`` is False where a line could not be understood: its spending would go uncounted."""

    problems: tuple[Problem, ...]
    lines: int
    opening: dict[str, Any]
    closing: dict[str, Any]
    spendings: tuple[Spending, ...]
    countable: bool

    @property
    def blocks(self) -> tuple[Spending, ...]:
        """The DP-SGD steps."""
        return tuple(spending for spending in self.spendings if spending.sampled)

    def paid_for(self, purpose: str) -> frozenset[float]:
        """Noise multipliers of the Gaussian mechanisms on all records that were used for ``purpose``."""
        gaussian = (one for one in self.spendings if not one.sampled and not one.laplace)
        return frozenset(one.noise_multiplier for one in gaussian if one.purpose == purpose)

    @property
    def steps(self) -> int:
        """How many DP-SGD steps were announced."""
        return sum(block.steps for block in self.blocks)

    @property
    def delta(self) -> float | None:
        """The delta that the opening line binds."""
        delta = self.opening.get("delta")
        return number(delta) if is_open_probability(delta) else None


def read_ledger(content: bytes) -> Ledger:
    """Reads the whole file and notes every problem on the way."""
    problems: list[Problem] = []
    rest = cut_off(content)
    if rest:
        problems.append(Problem(FILE, "the last line is cut off", shown(rest.decode("ascii", "replace")), "a final newline"))
    lines: list[dict[str, Any] | None] = []
    for row, text in enumerate(whole_lines(content), start=1):
        if len(problems) >= MOST_PROBLEMS:  # whatever follows, the ledger cannot be counted
            break
        line, faults = _read_line(row, text)
        lines.append(line)
        problems += faults
    problems += _chain_problems(lines)
    problems += _order_problems(lines)
    known = [line for line in lines if line is not None]
    spendings = tuple(_spending(line) for line in known if line["kind"] not in ("open", "close"))
    problems += _block_problems(known)
    return Ledger(
        problems=tuple(problems),
        lines=len(lines),
        opening=known[0]["body"] if known and known[0]["kind"] == "open" else {},
        closing=known[-1]["body"] if known and known[-1]["kind"] == "close" else {},
        spendings=spendings,
        countable=len(known) == len(lines) and not rest and bool(known),
    )


def _read_line(row: int, text: bytes) -> tuple[dict[str, Any] | None, list[Problem]]:
    """One line and its problems; None where it or its body cannot be used."""
    where = f"line {row}: "
    record = parse_object(text)
    if isinstance(record, str):
        return None, [Problem(FILE, f"{where}this is no JSON object", record, "one JSON object a line")]
    faults = list(field_problems(FILE, record, LINE, where=where, closed=True))
    if faults:
        return None, faults
    body = BODIES.get(record["kind"])
    if body is None:
        return None, [Problem(FILE, f"{where}unknown kind of event", shown(record["kind"]), ", ".join(BODIES))]
    faults = list(field_problems(FILE, record["body"], body, where=where, closed=True))
    return (None if faults else record), faults


def _chain_problems(lines: list[dict[str, Any] | None]) -> Iterator[Problem]:
    """Index, link and hash of every line that can be read: no line can be edited, moved or left out unseen."""
    for row, line in enumerate(lines, start=1):
        if line is None:
            continue
        if line["index"] != row - 1:
            yield Problem(FILE, f"line {row}: the index is wrong", shown(line["index"]), str(row - 1))
        before = lines[row - 2] if row > 1 else None
        link = FIRST_PREVIOUS if row == 1 else (before["hash"] if before is not None else None)
        if link is not None and line["previous"] != link:
            yield Problem(FILE, f"line {row}: the chain is broken (previous)", line["previous"], link)
        digest = digest_of({key: value for key, value in line.items() if key != "hash"})
        if digest != line["hash"]:
            yield Problem(
                FILE, f"line {row}: the hash does not match the content", line["hash"], digest or "a line with a digest"
            )


def _order_problems(lines: list[dict[str, Any] | None]) -> Iterator[Problem]:
    """``open`` first and only there, ``close`` last and only there."""
    if not lines:
        yield Problem(FILE, "the ledger is empty", "no line", "open ... close")
        return
    for kind, place, words in (("open", 0, "first"), ("close", len(lines) - 1, "last")):
        line = lines[place]
        if line is not None and line["kind"] != kind:
            yield Problem(FILE, f"the {words} line is not {kind!r}", shown(line["kind"]), kind)
        for row, other in enumerate(lines):
            if other is not None and other["kind"] == kind and row != place:
                yield Problem(FILE, f"line {row + 1}: {kind!r} may only be the {words} line", kind, "another event")


def _spending(line: dict[str, Any]) -> Spending:
    body = line["body"]
    if line["kind"] in ("gaussian", "laplace"):
        laplace = line["kind"] == "laplace"
        return Spending(float(body["noise_multiplier"]), 1.0, 1, sampled=False, purpose=body["purpose"], laplace=laplace)
    return Spending(float(body["noise_multiplier"]), float(body["sample_rate"]), body["steps"], sampled=True)


def _block_problems(lines: list[dict[str, Any]]) -> Iterator[Problem]:
    """Blocks follow each other without gap or overlap, and the close counts them all."""
    steps = 0
    for line in lines:
        body = line["body"]
        if line["kind"] == "poisson-gaussian":
            if body["first_step"] != steps:
                what = f"event {line['index']}: the block does not begin where the one before ended"
                yield Problem(FILE, what, shown(body["first_step"]), f"first_step {steps}")
            steps += body["steps"]
        elif line["kind"] == "close" and body["steps"] != steps:
            yield Problem(FILE, "close: steps is not the sum of all blocks", shown(body["steps"]), str(steps))
