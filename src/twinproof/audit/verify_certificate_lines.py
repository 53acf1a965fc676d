"""Every certificate once more, from its own counts.

Guarantees
    A line passes only if its radius is not above sigma * Phi^-1(L - tau) for its own votes, where L is the one-sided
    Clopper-Pearson bound at the alpha of the look after its draws, up to the error of two float64 special functions (1e-9 of
    the radius). A line that stopped at a look without reaching the target is no lie: giving up claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.audit.evidence import shown
from twinproof.audit.fields import is_count
from twinproof.audit.verification import Problem
from twinproof.audit.verify_certificates import ROUNDING_UNIT, SLACK, Rule, rules_of
from twinproof.audit.verify_run_json import PublicData
from twinproof.rounding import format_down

FILE = "certificates.csv"
HEADER = b"index,label,prediction,votes,top,radius,correct,draws"
ABSTAIN = -1
# p this close to 1/2 is on either side for two correct programs.
UNDECIDED = 1e-12
# Faults of one sort that are named line by line; the rest are counted, so that a broken file does not bury the others.
NAMED_LINES = 20

_COUNT = rb"(0|[1-9][0-9]{0,14})"
_LINE = re.compile(
    rb"%b,%b,(-1|0|[1-9][0-9]{0,14}),%b,%b,([0-9]{1,9}\.[0-9]{6}),([01]),%b" % (_COUNT, _COUNT, _COUNT, _COUNT, _COUNT),
    re.ASCII,
)

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Lines:
    """The answers that could be read from ``file``, column by column; ``rows`` are their line numbers in it."""

    rows: Whole
    index: Whole
    label: Whole
    prediction: Whole
    votes: Whole
    top: Whole
    correct: Whole
    radius: NDArray[np.float64]
    draws: Whole
    file: str = FILE

    def only(self, mask: NDArray[np.bool_]) -> Lines:
        """The lines under ``mask``."""
        return replace(self, **{name: column[mask] for name, column in vars(self).items() if name != "file"})


def text_of(raw: bytes) -> str:
    """A line of a file as text that can be shown."""
    return shown(raw.decode("ascii", "backslashreplace"))


def named(
    file: str, rows: Sequence[int], what: str, got: Callable[[int], str], wanted: Callable[[int], str]
) -> Iterator[Problem]:
    """One problem for each of the first lines of ``rows``; ``got`` and ``wanted`` are asked by position in ``rows``."""
    for at, row in enumerate(rows[:NAMED_LINES]):
        yield Problem(file, f"line {row}: {what}", got(at), wanted(at))
    if len(rows) > NAMED_LINES:
        yield Problem(file, f"{what}, also in {len(rows) - NAMED_LINES} more lines", f"up to line {rows[-1]}", "no such line")


def read_lines(content: bytes) -> tuple[Lines, list[Problem]]:
    """The columns of certificates.csv, and every line that is no certificate."""
    raw = content.split(b"\n")
    problems: list[Problem] = []
    if raw[-1]:
        problems.append(Problem(FILE, "the last line is cut off", text_of(raw[-1]), "a final newline"))
    if raw[0] != HEADER:
        problems.append(Problem(FILE, "the header is wrong", text_of(raw[0]), HEADER.decode()))
    matches = [_LINE.fullmatch(text) for text in raw[1:-1]]
    broken = [row for row, match in enumerate(matches, start=2) if match is None]
    problems += named(
        FILE, broken, "this is no certificate", lambda at: text_of(raw[broken[at] - 1]), lambda at: HEADER.decode()
    )
    rows = [row for row, match in enumerate(matches, start=2) if match is not None]
    columns = list(zip(*(match.groups() for match in matches if match is not None), strict=True)) or [()] * 8
    whole = [np.array([int(cell) for cell in columns[at]], dtype=np.int64) for at in (0, 1, 2, 3, 4, 6, 7)]
    radius = np.array([float(cell) for cell in columns[5]], dtype=np.float64)
    index, label, prediction, votes, top, correct, draws = whole
    return Lines(np.array(rows, dtype=np.int64), index, label, prediction, votes, top, correct, radius, draws), problems


def line_problems(lines: Lines, settings: dict[str, Any], data: PublicData) -> Iterator[Problem]:
    """All that can be checked on the lines that could be read."""
    yield from _index_problems(lines, settings.get("inputs"))
    yield from _class_problems(lines, data.classes)
    yield from wrong(
        lines,
        lines.correct != (lines.prediction == lines.label),
        "correct does not follow from prediction and label",
        lines.correct,
        lambda at: str(int(lines.prediction[at] == lines.label[at])),
    )
    rules = rules_of(settings)
    if rules:
        looks = [rule.n for rule in rules]
        strange = ~np.isin(lines.draws, looks)
        yield from wrong(lines, strange, "draws is none of the looks", lines.draws, lambda at: shown(looks))
    for rule in rules:
        yield from vote_problems(lines.only(lines.draws == rule.n), rule)


def wrong(
    lines: Lines, mask: NDArray[np.bool_], what: str, column: NDArray[Any], wanted: Callable[[int], str]
) -> Iterator[Problem]:
    """A problem for each line under ``mask``; ``wanted`` is asked by position among all lines."""
    places = np.flatnonzero(mask)
    rows = lines.rows[places].tolist()
    yield from named(lines.file, rows, what, lambda at: str(column[places[at]]), lambda at: wanted(int(places[at])))


def _index_problems(lines: Lines, inputs: object) -> Iterator[Problem]:
    expected = lines.rows - 2
    yield from wrong(lines, lines.index != expected, "the index is not consecutive", lines.index, lambda at: str(expected[at]))
    if is_count(inputs) and len(lines.rows) != inputs:
        yield Problem(
            FILE, "the number of certificates is not the one of certificates.json", str(len(lines.rows)), shown(inputs)
        )


def _class_problems(lines: Lines, classes: int | None) -> Iterator[Problem]:
    if classes is None:
        return
    wanted = f"0..{classes - 1}"
    for name, column in (("label", lines.label), ("top", lines.top)):
        yield from wrong(lines, column >= classes, f"{name} is no class", column, lambda at: wanted)


def vote_problems(lines: Lines, rule: Rule) -> Iterator[Problem]:
    """Votes within the draws, and prediction and radius as the votes command."""
    yield from wrong(lines, lines.votes > rule.n, "more votes than draws", lines.votes, lambda at: f"0..{rule.n}")
    p, radius = rule.radii(np.minimum(lines.votes, rule.n))
    unknown = ~np.isfinite(radius)
    yield from wrong(
        lines, unknown, "the radius cannot be recomputed", lines.votes, lambda at: "votes that give a finite radius"
    )
    undecided = np.abs(p - 0.5) <= UNDECIDED
    answers = p > 0.5
    expected = np.where(answers, lines.top, ABSTAIN)
    unruly = (lines.prediction != expected) & ~(undecided & ((lines.prediction == lines.top) | (lines.prediction == ABSTAIN)))
    yield from wrong(lines, unruly, "prediction is not what the votes command", lines.prediction, lambda at: str(expected[at]))
    above = ~(lines.radius <= radius * (1 + SLACK) + UNDECIDED) & ~unknown
    yield from wrong(
        lines, above, "the radius is above what the votes prove", lines.radius, lambda at: format_down(float(radius[at]))
    )
    below = (lines.radius < radius - 2 * ROUNDING_UNIT) & ~unknown
    yield from wrong(
        lines, below, "the radius is below what the votes give", lines.radius, lambda at: format_down(float(radius[at]))
    )
    silent = (lines.prediction == ABSTAIN) & (lines.radius != 0)
    yield from wrong(lines, silent, "an abstention has a radius", lines.radius, lambda at: "0.000000")
