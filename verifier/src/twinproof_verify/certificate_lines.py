"""Tables of numbers in text, and every certificate once more from its own counts.

A line is read only if its form matches all of it, so that each number has one spelling; a million lines take seconds. A
certificate passes only if its sums are those of some draws, and if its radius is not above (sigma * reach - slack) /
operator_norm, with the reach that the settings' bound gives for the confidence bounds of its own sums, at the alpha of the look
after its draws, up to the error of two float64 computations. A line that stopped without reaching the target claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinproof_verify.bounds import UNION, Counts, Rule, Whole
from twinproof_verify.evidence import Originals, format_down, shown
from twinproof_verify.findings import Problem
from twinproof_verify.models import ROUNDING_UNIT
from twinproof_verify.run_json import PublicData

# Faults of one sort that are named line by line; the rest are counted, so that a broken file does not bury the others.
NAMED_LINES = 20
MOST_BROKEN = 10_000
_CHUNK = 2**20

COUNT = rb"(?:0|[1-9][0-9]{0,14})"
CLASS = rb"(?:-1|0|[1-9][0-9]{0,14})"
LENGTH = rb"[0-9]{1,9}\.[0-9]{6}"
# Sums of squares of scores are longer than counts; these are the ones that fit into 63 bits with room to spare.
SUM = rb"(?:0|[1-9][0-9]{0,17}|[1-8][0-9]{18}|9[01][0-9]{17})"


def text_of(raw: bytes) -> str:
    return shown(raw[:1000].decode("ascii", "backslashreplace"))


@dataclass(frozen=True)
class Form:
    """How a file's lines look: its header, its cells as patterns, and which run of them is kept as text (if any)."""

    header: bytes
    what: str
    cells: tuple[bytes, ...]
    words: bytes | None = None

    @property
    def line(self) -> bytes:
        return b",".join(self.cells)


@dataclass
class Table:
    """The lines that could be read: numbers of the lines, their cells (decimals in millionths), their words; and problems."""

    rows: Whole
    cells: Whole
    words: list[bytes]
    problems: list[Problem]

    def decimals(self, column: int) -> NDArray[np.float64]:
        """A column of decimals: the nearest floats, as the decimals themselves would be read."""
        return np.asarray(self.cells[:, column] / 1e6)


def read_table(content: bytes, form: Form, file: str) -> Table:
    """All lines of ``content`` after its header, as far as they are of ``form``."""
    problems: list[Problem] = []
    end = content.rfind(b"\n") + 1
    if end < len(content):
        problems.append(Problem(file, "the last line is cut off", text_of(content[end:]), "a final newline"))
    start = content.find(b"\n") + 1 or len(content) + 1
    if content[: start - 1] != form.header:
        problems.append(Problem(file, "the header is wrong", text_of(content[: start - 1]), form.header.decode()))
    many, one = re.compile(rb"(?:%b\n)*+" % form.line), re.compile(form.line)
    words = None if form.words is None else re.compile(form.words)
    broken: list[tuple[int, bytes]] = []
    row, parts, rows, texts = 2, [], [], []
    for chunk in _chunks(content, start, end):
        count = chunk.count(b"\n")
        places: Whole = np.arange(row, row + count, dtype=np.int64)
        row += count
        if many.fullmatch(chunk) is None:
            chunk, places = _sound_lines(chunk, one, places, broken)
        if words is not None:
            texts += words.findall(chunk)
            chunk = words.sub(b"", chunk)
        rows.append(places)
        parts.append(_numbers(chunk))
        if len(broken) > MOST_BROKEN:
            break
    width = len(form.cells) - (form.words is not None)
    numbers = [number for number, _ in broken]
    problems += named(file, numbers, form.what, lambda at: text_of(broken[at][1]), lambda at: form.header.decode())
    if len(broken) > MOST_BROKEN:
        got = f"{len(broken)} broken lines"
        problems.append(Problem(file, "the rest of the file was not read", got, "lines of the format"))
    cells = np.concatenate([np.zeros(0, dtype=np.int64), *parts]).reshape(-1, width)
    return Table(np.concatenate([np.zeros(0, dtype=np.int64), *rows]), cells, texts, problems)


def _chunks(content: bytes, start: int, end: int) -> Iterator[bytes]:
    """Whole lines from ``start`` to ``end``, about a megabyte at a time; a longer line by itself."""
    while start < end:
        stop = content.rfind(b"\n", start, start + _CHUNK) + 1 or content.find(b"\n", start) + 1
        yield content[start:stop]
        start = stop


def _sound_lines(chunk: bytes, one: re.Pattern[bytes], places: Whole, broken: list[tuple[int, bytes]]) -> tuple[bytes, Whole]:
    """The lines of ``chunk`` that are of the form; the others are noted."""
    kept, texts = [], []
    for at, text in enumerate(chunk[:-1].split(b"\n")):
        if one.fullmatch(text):
            kept.append(at)
            texts.append(text + b"\n")
        else:
            broken.append((int(places[at]), text[:1000]))
            if len(broken) > MOST_BROKEN:
                break
    return b"".join(texts), places[np.array(kept, dtype=np.int64)]


def _numbers(chunk: bytes) -> Whole:
    """Cells of lines that were matched; without its point a decimal of six places is a number of millionths."""
    plain = chunk.replace(b".", b"").replace(b"\n", b",").rstrip(b",")
    return np.fromstring(plain.decode("ascii"), dtype=np.int64, sep=",") if plain else np.zeros(0, dtype=np.int64)


HEADER = b"index,label,prediction,votes,top,radius,correct,draws"
# Where votes and the complement are not all there is.
WIDE_HEADER = HEADER + b",squares,runner_up,runner_up_squares"
ABSTAIN = -1
# Bounds this close to each other are on either side for two correct programs.
UNDECIDED = 1e-12
_CELLS = (COUNT, COUNT, CLASS, COUNT, COUNT, LENGTH, rb"[01]", COUNT)
_NARROW = Form(HEADER, "this is no certificate", _CELLS)
_WIDE = Form(WIDE_HEADER, "this is no certificate", (*_CELLS, SUM, COUNT, SUM))


@dataclass(frozen=True)
class Lines:
    """The answers that could be read from ``file``, column by column; ``rows`` are their line numbers in it.

    ``counts`` holds the sums behind them; its ``total`` is what the file calls votes.
    """

    rows: Whole
    index: Whole
    label: Whole
    prediction: Whole
    counts: Counts
    top: Whole
    correct: Whole
    radius: NDArray[np.float64]
    draws: Whole
    file: str

    def only(self, mask: NDArray[np.bool_]) -> Lines:
        columns = {name: column[mask] for name, column in vars(self).items() if name not in ("file", "counts")}
        return replace(self, counts=Counts(**{name: sums[mask] for name, sums in vars(self.counts).items()}), **columns)


def named(
    file: str, rows: Sequence[int], what: str, got: Callable[[int], str], wanted: Callable[[int], str]
) -> Iterator[Problem]:
    """One problem for each of the first lines of ``rows``; ``got`` and ``wanted`` are asked by position in ``rows``."""
    for at, row in enumerate(rows[:NAMED_LINES]):
        yield Problem(file, f"line {row}: {what}", got(at), wanted(at))
    if len(rows) > NAMED_LINES:
        yield Problem(file, f"{what}, also in {len(rows) - NAMED_LINES} more lines", f"up to line {rows[-1]}", "no such line")


def read_lines(content: bytes, file: str, *, wide: bool = False) -> tuple[Lines, list[Problem]]:
    """The columns of certificates.csv, and every line that is no certificate; ``wide`` with those of scores and runners-up."""
    table = read_table(content, _WIDE if wide else _NARROW, file)
    index, label, prediction, votes, top, _, correct, draws, *sums = table.cells.T
    counts = Counts(votes, *sums) if wide else Counts.of_votes(votes)
    lines = Lines(table.rows, index, label, prediction, counts, top, correct, table.decimals(5), draws, file)
    return lines, table.problems


def line_problems(lines: Lines, rules: Sequence[Rule], inputs: object, data: PublicData) -> Iterator[Problem]:
    """All that can be checked on the lines that could be read; without ``rules`` no radius."""
    expected = lines.rows - 2
    yield from wrong(lines, lines.index != expected, "the index is not consecutive", lines.index, lambda at: str(expected[at]))
    if isinstance(inputs, int) and len(lines.rows) != inputs:
        what = "the number of certificates is not the one of certificates.json"
        yield Problem(lines.file, what, str(len(lines.rows)), shown(inputs))
    if data.classes is not None:
        wanted = f"0..{data.classes - 1}"
        for name, column in (("label", lines.label), ("top", lines.top)):
            yield from wrong(lines, column >= data.classes, f"{name} is no class", column, lambda at: wanted)
    yield from wrong(
        lines,
        lines.correct != (lines.prediction == lines.label),
        "correct does not follow from prediction and label",
        lines.correct,
        lambda at: str(int(lines.prediction[at] == lines.label[at])),
    )
    if rules:
        looks = [rule.n for rule in rules]
        strange = ~np.isin(lines.draws, looks)
        yield from wrong(lines, strange, "draws is none of the looks", lines.draws, lambda at: shown(looks))
    for rule in rules:
        yield from vote_problems(lines.only(lines.draws == rule.n), rule)


class Rows(Protocol):
    """Lines of ``file``, by their numbers in it."""

    @property
    def rows(self) -> Whole: ...
    @property
    def file(self) -> str: ...


class Labelled(Rows, Protocol):
    """Lines about the records of the test set."""

    @property
    def index(self) -> Whole: ...
    @property
    def label(self) -> Whole: ...


def wrong(
    lines: Rows, mask: NDArray[np.bool_], what: str, column: NDArray[Any], wanted: Callable[[int], str]
) -> Iterator[Problem]:
    """A problem for each line under ``mask``; ``wanted`` is asked by position among all lines."""
    places = np.flatnonzero(mask)
    rows = lines.rows[places].tolist()
    yield from named(lines.file, rows, what, lambda at: str(column[places[at]]), lambda at: wanted(int(places[at])))


def vote_problems(lines: Lines, rule: Rule) -> Iterator[Problem]:
    """Sums that ``rule.n`` draws can give, and prediction and radius as they command."""
    yield from _sum_problems(lines, rule)
    proven = rule.answers(lines.counts)
    votes, radius = lines.counts.total, proven.radius
    unknown = ~np.isfinite(radius)
    yield from wrong(lines, unknown, "the radius cannot be recomputed", votes, lambda at: "votes that give a finite radius")
    with np.errstate(over="ignore"):  # a tau beyond all bounds, which is told where the settings are
        undecided = np.abs(proven.low - proven.high) <= UNDECIDED
    expected = np.where(proven.low > proven.high, lines.top, ABSTAIN)
    unruly = (lines.prediction != expected) & ~(undecided & ((lines.prediction == lines.top) | (lines.prediction == ABSTAIN)))
    yield from wrong(lines, unruly, "prediction is not what the votes command", lines.prediction, lambda at: str(expected[at]))
    above = ~(lines.radius <= radius + proven.slack + UNDECIDED) & ~unknown
    yield from wrong(
        lines, above, "the radius is above what the votes prove", lines.radius, lambda at: format_down(float(radius[at]))
    )
    below = (lines.radius < radius - proven.slack - 2 * ROUNDING_UNIT) & ~unknown
    yield from wrong(
        lines, below, "the radius is below what the votes give", lines.radius, lambda at: format_down(float(radius[at]))
    )
    silent = (lines.prediction == ABSTAIN) & (lines.radius != 0)
    yield from wrong(lines, silent, "an abstention has a radius", lines.radius, lambda at: "0.000000")


def _sum_problems(lines: Lines, rule: Rule) -> Iterator[Problem]:
    """Sums of ``rule.n`` scores from 0 to the resolution, and of their squares.

    A square is at most the resolution times its score, and odd where that is; the sum of squares is at least the square of the
    sum over the draws. In Python's integers: the products need more than 64 bits.
    """
    counts, unit = lines.counts, rule.way.resolution
    most = rule.n * unit
    yield from wrong(lines, counts.total > most, "more votes than draws", counts.total, lambda at: f"0..{most}")
    pairs = [("squares", counts.total, counts.squares)] if counts.squares is not counts.total else []
    if rule.way.runner_up == UNION or counts.other.any():
        both = counts.total + counts.other
        yield from wrong(lines, both > most, "more votes for two classes than draws", both, lambda at: f"0..{most}")
        pairs.append(("runner_up_squares", counts.other, counts.other_squares))
    for name, total, squares in pairs:
        sums = zip(total.tolist(), squares.tolist(), strict=True)
        good = [one * one <= rule.n * square and square <= one * unit and (one + square) % 2 == 0 for one, square in sums]
        bad = ~np.array(good, dtype=np.bool_)
        yield from wrong(lines, bad, f"{name} are those of no draws", squares, lambda at: "sums that draws can give")


def label_problems(lines: Labelled, originals: Originals) -> Iterator[Problem]:
    """Labels of certificates.csv against the test set; indices are checked where the lines are."""
    known = (lines.index >= 0) & (lines.index < len(originals.labels))
    truth = np.full(len(lines.index), -1, dtype=np.int64)
    truth[known] = originals.labels[lines.index[known]]
    what = "label is not that of the test record"
    yield from wrong(lines, lines.label != truth, what, lines.label, lambda at: str(truth[at]))
