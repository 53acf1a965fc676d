"""Tables of numbers in text, checked to the letter and read a megabyte at a time: a million lines take seconds.

Guarantees
    A line is read only if ``form`` matches all of it, so that each number has one spelling. Whatever the bytes are, reading
    ends after a time that grows with their number, and gives up after ``MOST_BROKEN`` lines that are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.evidence import shown
from twinproof.auditing.verification import Problem

# Faults of one sort that are named line by line; the rest are counted, so that a broken file does not bury the others.
NAMED_LINES = 20
MOST_BROKEN = 10_000
_CHUNK = 2**20

COUNT = rb"(?:0|[1-9][0-9]{0,14})"
CLASS = rb"(?:-1|0|[1-9][0-9]{0,14})"
LENGTH = rb"[0-9]{1,9}\.[0-9]{6}"
# Sums of squares of scores are longer than counts; these are the ones that fit into 63 bits with room to spare.
SUM = rb"(?:0|[1-9][0-9]{0,17}|[1-8][0-9]{18}|9[01][0-9]{17})"

Whole = NDArray[np.int64]


def text_of(raw: bytes) -> str:
    """A line of a file as text that can be shown."""
    return shown(raw[:1000].decode("ascii", "backslashreplace"))


@dataclass(frozen=True)
class Form:
    """How a file's lines look: its header, its cells as patterns, and which run of them is kept as text (if any)."""

    file: str
    header: bytes
    what: str
    cells: tuple[bytes, ...]
    words: bytes | None = None

    @property
    def line(self) -> bytes:
        """The pattern of a whole line."""
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


@dataclass
class _Broken:
    """Lines that are none: the first of them, how many, and the last."""

    first: list[tuple[int, bytes]] = field(default_factory=list)
    count: int = 0
    last: int = 0

    def add(self, row: int, text: bytes) -> None:
        self.count, self.last = self.count + 1, row
        if len(self.first) < NAMED_LINES:
            self.first.append((row, text[:1000]))

    def problems(self, form: Form) -> Iterator[Problem]:
        for row, text in self.first:
            yield Problem(form.file, f"line {row}: {form.what}", text_of(text), form.header.decode())
        if self.count > NAMED_LINES:
            more = f"{form.what}, also in {self.count - NAMED_LINES} more lines"
            yield Problem(form.file, more, f"up to line {self.last}", "no such line")
        if self.count > MOST_BROKEN:
            yield Problem(form.file, "the rest of the file was not read", f"{self.count} broken lines", "lines of the format")


def read_table(content: bytes, form: Form) -> Table:
    """All lines of ``content`` after its header, as far as they are of ``form``."""
    problems: list[Problem] = []
    end = content.rfind(b"\n") + 1
    if end < len(content):
        problems.append(Problem(form.file, "the last line is cut off", text_of(content[end:]), "a final newline"))
    start = content.find(b"\n") + 1 or len(content) + 1
    if content[: start - 1] != form.header:
        problems.append(Problem(form.file, "the header is wrong", text_of(content[: start - 1]), form.header.decode()))
    many, one = re.compile(rb"(?:%b\n)*+" % form.line), re.compile(form.line)
    words = None if form.words is None else re.compile(form.words)
    broken, row, parts, rows, texts = _Broken(), 2, [], [], []
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
        if broken.count > MOST_BROKEN:
            break
    width = len(form.cells) - (form.words is not None)
    problems += broken.problems(form)
    cells = np.concatenate([np.zeros(0, dtype=np.int64), *parts]).reshape(-1, width)
    return Table(np.concatenate([np.zeros(0, dtype=np.int64), *rows]), cells, texts, problems)


def _chunks(content: bytes, start: int, end: int) -> Iterator[bytes]:
    """Whole lines from ``start`` to ``end``, about a megabyte at a time; a longer line by itself."""
    while start < end:
        stop = content.rfind(b"\n", start, start + _CHUNK) + 1 or content.find(b"\n", start) + 1
        yield content[start:stop]
        start = stop


def _sound_lines(chunk: bytes, one: re.Pattern[bytes], places: Whole, broken: _Broken) -> tuple[bytes, Whole]:
    """The lines of ``chunk`` that are of the form; the others are noted."""
    kept, texts = [], []
    for at, text in enumerate(chunk[:-1].split(b"\n")):
        if one.fullmatch(text):
            kept.append(at)
            texts.append(text + b"\n")
        else:
            broken.add(int(places[at]), text)
            if broken.count > MOST_BROKEN:
                break
    return b"".join(texts), places[np.array(kept, dtype=np.int64)]


def _numbers(chunk: bytes) -> Whole:
    """Cells of lines that were matched; without its point a decimal of six places is a number of millionths."""
    plain = chunk.replace(b".", b"").replace(b"\n", b",").rstrip(b",")
    return np.fromstring(plain.decode("ascii"), dtype=np.int64, sep=",") if plain else np.zeros(0, dtype=np.int64)
