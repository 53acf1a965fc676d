"""Every certificate once more, from its own counts.

Guarantees
    A line passes only if its sums are those of some draws, and if its radius is not above (sigma * reach - slack) /
    operator_norm, with the reach that the settings' bound gives for the confidence bounds of its own sums, at the alpha of the
    look after its draws; up to the error of two float64 computations (1e-9 of sigma * reach, 1e-6 where a bound is searched
    for). A line that stopped at a look without reaching the target is no lie: giving up claims nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import is_count
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_certificates import ROUNDING_UNIT, rules_of
from twinproof.auditing.verify_confidence import UNION, Counts
from twinproof.auditing.verify_rule import Rule
from twinproof.auditing.verify_run_json import PublicData
from twinproof.auditing.verify_table import CLASS, COUNT, LENGTH, NAMED_LINES, SUM, Form, read_table
from twinproof.rounding import format_down

FILE = "certificates.csv"
HEADER = b"index,label,prediction,votes,top,radius,correct,draws"
# Where votes and the complement are not all there is.
WIDE_HEADER = HEADER + b",squares,runner_up,runner_up_squares"
ABSTAIN = -1
# Bounds this close to each other are on either side for two correct programs.
UNDECIDED = 1e-12
_CELLS = (COUNT, COUNT, CLASS, COUNT, COUNT, LENGTH, rb"[01]", COUNT)
_NARROW = Form(FILE, HEADER, "this is no certificate", _CELLS)
_WIDE = Form(FILE, WIDE_HEADER, "this is no certificate", (*_CELLS, SUM, COUNT, SUM))

Whole = NDArray[np.int64]


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
    file: str = FILE

    def only(self, mask: NDArray[np.bool_]) -> Lines:
        """The lines under ``mask``."""
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


def read_lines(content: bytes, *, wide: bool = False) -> tuple[Lines, list[Problem]]:
    """The columns of certificates.csv, and every line that is no certificate; ``wide`` with those of scores and runners-up."""
    table = read_table(content, _WIDE if wide else _NARROW)
    index, label, prediction, votes, top, _, correct, draws, *sums = table.cells.T
    counts = Counts(votes, *sums) if wide else Counts.of_votes(votes)
    return Lines(table.rows, index, label, prediction, counts, top, correct, table.decimals(5), draws), table.problems


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
        bad = np.array([_impossible(one, square, rule.n, unit) for one, square in sums], dtype=np.bool_)
        yield from wrong(lines, bad, f"{name} are those of no draws", squares, lambda at: "sums that draws can give")


def _impossible(total: int, squares: int, draws: int, resolution: int) -> bool:
    return not total * total <= draws * squares or squares > total * resolution or (total + squares) % 2 != 0
