"""The two files of JSON lines: the ledger (a hash chain, a small grammar, step blocks without gap) and the progress file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from twinproof_verify import models
from twinproof_verify.evidence import cut_off, digest_of, parse_object, shown, whole_lines
from twinproof_verify.files import LEDGER, METRICS
from twinproof_verify.findings import MOST_PROBLEMS, Problem
from twinproof_verify.models import Record, number, read

NEIGHBOURS = {1: "add-or-remove-one", 2: "replace-by-null"}
"""What neighbouring data sets are called in each format of the ledger. Both cost the same (docs/formats/run.md)."""
FIRST_PREVIOUS = "0" * 64


class Open(Record):
    """The first event: what the run was begun with."""

    format: Literal[1, 2]
    config_sha256: models.Digest
    delta: models.OpenProbability | None
    neighbours: Literal["add-or-remove-one", "replace-by-null"]


class Mechanism(Record):
    """One use of all records, with Gaussian or Laplace noise."""

    noise_multiplier: models.Positive
    purpose: models.Text


class Block(Record):
    """Steps of DP-SGD, each on a Poisson sample."""

    sample_rate: models.Rate
    noise_multiplier: models.Positive
    first_step: models.Count
    steps: models.PositiveCount


class Close(Record):
    """The last event: what was released."""

    steps: models.Count
    model_sha256: models.Digest
    epsilon: models.NotNegative | None
    epsilon_rdp: models.NotNegative | None


EVENTS: dict[str, type[Record]] = {
    "open": Open,
    "gaussian": Mechanism,
    "laplace": Mechanism,
    "poisson-gaussian": Block,
    "close": Close,
}


class Line(Record):
    """One line of the ledger."""

    index: models.Count
    kind: models.Text
    body: dict[str, Any]
    previous: models.Digest
    hash: models.Digest


class Progress(Record):
    """One line of metrics.jsonl."""

    step: models.Count
    epoch: models.NotNegative
    epsilon: models.NotNegative | None
    test_accuracy: models.Probability
    test_loss: float
    # Written by earlier versions; how long a step takes tells how many records it drew.
    rate: models.NotNegative | None = None


@dataclass(frozen=True)
class Spending:
    """``steps`` mechanisms, each on a Poisson sample if ``sampled``, else on all records for ``purpose``.

    The multiplier of ``laplace`` noise is a scale over an l1 sensitivity and compares with no other one.
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
    opening: Open | None
    closing: Close | None
    spendings: tuple[Spending, ...]
    countable: bool

    @property
    def blocks(self) -> tuple[Spending, ...]:
        return tuple(spending for spending in self.spendings if spending.sampled)

    def paid_for(self, purpose: str) -> frozenset[float]:
        """Noise multipliers of the Gaussian mechanisms on all records that were used for ``purpose``."""
        gaussian = (one for one in self.spendings if not one.sampled and not one.laplace)
        return frozenset(one.noise_multiplier for one in gaussian if one.purpose == purpose)

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)

    @property
    def delta(self) -> float | None:
        return None if self.opening is None else self.opening.delta


_Event = tuple[Line, Record]


def _objects(file: str, content: bytes, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Each whole line: where it stands, and the object in it (None where there is none); faults are added to ``problems``."""
    if rest := cut_off(content):
        problems.append(Problem(file, "the last line is cut off", shown(rest.decode("ascii", "replace")), "a final newline"))
    for row, text in enumerate(whole_lines(content), start=1):
        if len(problems) >= MOST_PROBLEMS:  # whatever follows, the file cannot be believed
            return
        record = parse_object(text)
        if isinstance(record, str):
            problems.append(Problem(file, f"line {row}: this is no JSON object", record, "one JSON object a line"))
        yield f"line {row}: ", record if isinstance(record, dict) else None


def read_ledger(content: bytes) -> Ledger:
    problems: list[Problem] = []
    events: list[_Event | None] = []
    for where, record in _objects(LEDGER, content, problems):
        events.append(None if record is None else _event(record, where, problems))
    problems += _chain_problems(events)
    problems += _order_problems(events)
    known = [event for event in events if event is not None]
    problems += _block_problems(known)
    opening, closing = (known[0][1], known[-1][1]) if known else (None, None)
    return Ledger(
        problems=tuple(problems),
        lines=len(events),
        opening=opening if isinstance(opening, Open) else None,
        closing=closing if isinstance(closing, Close) else None,
        spendings=tuple(spending for event in known if (spending := _spending(*event)) is not None),
        countable=bool(known) and len(known) == len(events) and not cut_off(content),
    )


def _event(record: dict[str, Any], where: str, problems: list[Problem]) -> _Event | None:
    line, faults = read(Line, record, LEDGER, where)
    problems += faults
    if line is None:
        return None
    model = EVENTS.get(line.kind)
    if model is None:
        problems.append(Problem(LEDGER, f"{where}unknown kind of event", shown(line.kind), ", ".join(EVENTS)))
        return None
    body, faults = read(model, line.body, LEDGER, where)
    problems += faults
    return None if body is None else (line, body)


def _spending(line: Line, body: Record) -> Spending | None:
    if isinstance(body, Mechanism):
        laplace = line.kind == "laplace"
        return Spending(body.noise_multiplier, 1.0, 1, sampled=False, purpose=body.purpose, laplace=laplace)
    return Spending(body.noise_multiplier, body.sample_rate, body.steps, sampled=True) if isinstance(body, Block) else None


def _chain_problems(events: list[_Event | None]) -> Iterator[Problem]:
    """Index, link and hash of every line that can be read: no line can be edited, moved or left out unseen."""
    link: str | None = FIRST_PREVIOUS
    for row, event in enumerate(events, start=1):
        if event is None:
            link = None
            continue
        line, _ = event
        if line.index != row - 1:
            yield Problem(LEDGER, f"line {row}: the index is wrong", str(line.index), str(row - 1))
        if link is not None and line.previous != link:
            yield Problem(LEDGER, f"line {row}: the chain is broken (previous)", line.previous, link)
        digest = digest_of({"index": line.index, "kind": line.kind, "body": line.body, "previous": line.previous})
        if digest != line.hash:
            what = f"line {row}: the hash does not match the content"
            yield Problem(LEDGER, what, line.hash, digest or "a line with a digest")
        link = line.hash


def _order_problems(events: list[_Event | None]) -> Iterator[Problem]:
    """``open`` first and only there, ``close`` last and only there."""
    if not events:
        yield Problem(LEDGER, "the ledger is empty", "no line", "open ... close")
        return
    for kind, place, words in (("open", 0, "first"), ("close", len(events) - 1, "last")):
        event = events[place]
        if event is not None and event[0].kind != kind:
            yield Problem(LEDGER, f"the {words} line is not {kind!r}", shown(event[0].kind), kind)
        for row, other in enumerate(events):
            if other is not None and other[0].kind == kind and row != place:
                yield Problem(LEDGER, f"line {row + 1}: {kind!r} may only be the {words} line", kind, "another event")


def _block_problems(events: list[_Event]) -> Iterator[Problem]:
    """Blocks follow each other without gap or overlap, and the close counts them all."""
    steps = 0
    for line, body in events:
        if isinstance(body, Block):
            if body.first_step != steps:
                what = f"event {line.index}: the block does not begin where the one before ended"
                yield Problem(LEDGER, what, str(body.first_step), f"first_step {steps}")
            steps += body.steps
        elif isinstance(body, Close) and body.steps != steps:
            yield Problem(LEDGER, "close: steps is not the sum of all blocks", str(body.steps), str(steps))


def metrics_problems(content: bytes, privacy: dict[str, Any] | None) -> list[Problem]:
    """Progress lines: steps grow; epsilon never shrinks and never passes the final one of run.json."""
    problems: list[Problem] = []
    last_step, last_epsilon = -1, 0.0
    for where, record in _objects(METRICS, content, problems):
        line, faults = read(Progress, record, METRICS, where) if record is not None else (None, [])
        problems += faults
        if line is None:
            continue
        if line.step <= last_step:
            problems.append(Problem(METRICS, f"{where}steps do not grow", str(line.step), f"above {last_step}"))
        problems += _epsilon_problems(where, line, last_epsilon, privacy)
        last_step, last_epsilon = line.step, max(last_epsilon, line.epsilon or 0.0)
    return problems


def _epsilon_problems(where: str, line: Progress, last: float, privacy: dict[str, Any] | None) -> Iterator[Problem]:
    epsilon = line.epsilon
    if (epsilon is None) != (privacy is None):
        wanted = "null without privacy" if privacy is None else "the epsilon spent so far"
        yield Problem(METRICS, f"{where}epsilon does not fit the recipe", shown(epsilon), wanted)
    if epsilon is None or privacy is None:
        return
    if epsilon < last:
        yield Problem(METRICS, f"{where}epsilon shrinks, but nothing spent comes back", repr(epsilon), f"at least {last!r}")
    final, steps = number(privacy.get("epsilon")), number(privacy.get("steps"))
    if final is not None and epsilon > final:
        yield Problem(METRICS, f"{where}epsilon is above the final one of run.json", repr(epsilon), f"at most {final!r}")
    if steps is not None and line.step > steps:
        what = f"{where}the step lies behind the last one of run.json"
        yield Problem(METRICS, what, str(line.step), f"at most {steps:.0f}")
