"""Names and sentences that figures and tables share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from twinproof.guarantee import format_down
from twinproof_papers import gather
from twinproof_papers.cell import Measured
from twinproof_papers.experiment import Experiment, Published
from twinproof_papers.findings import Estimate, Findings, Table, TTest, over_repetitions
from twinproof_papers.methods import METHODS

ATTACK_NAMES: Mapping[str, str] = {"fgsm": "FGSM", "ifgsm": "I-FGSM", "mim": "MIM", "pgd": "PGD (Madry)"}
SIZE_AXIS = "linf size, inputs in [-1, 1]"
EPSILON_AXIS = "epsilon"
ANSWERS = "methods with noise answer with the class that most of their draws vote for"
ADAPTIVE = (
    "sound measure of accuracy: under PGD in expectation over the noise, which the papers did not try; an attack, no promise"
)
REFUTED_LINES = (
    "as published (no privacy): the paper's own training, whose privacy is refuted; its epsilon is the paper's claim, nothing "
    "promises it"
)


RADIUS = "radius"
# What numbers of a unit can be: shares, differences of shares, lengths.
_RANGES = {"%": (0.0, 100.0), "points": (-100.0, 100.0), RADIUS: (0.0, math.inf)}


@dataclass(frozen=True)
class Row:
    """A published number and ours (None where nothing here measures it), and a sound measure where one stands by."""

    published: Published
    ours: Estimate | None
    sound: Estimate | None

    @property
    def difference(self) -> float | None:
        """Ours minus theirs, in the unit of both."""
        return None if self.ours is None else self.ours.mean - self.published.value

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "difference": self.difference}


def compare(experiment: Experiment, findings: Findings) -> list[Row]:
    """A row for each published number of the experiment."""
    return [
        Row(number, estimate_of(findings.ours.get(number.key)), estimate_of(findings.sound.get(number.key)))
        for number in experiment.published
    ]


def markdown(experiment: Experiment, findings: Findings, caption: str, command: str) -> str:
    """The page of a result: what, by which command, the rows, the tests, and the notes that say how to read them."""
    lines = [f"# {experiment.name}: {experiment.item}", "", f"{experiment.paper}. {experiment.shows}.", ""]
    lines += [f"`{command}`", "", caption, ""]
    for block in findings.tables:
        lines += _titled(block)
    rows = compare(experiment, findings)
    if rows and not findings.tables:
        lines += [*_listed(rows), ""]
    for block in findings.beside:
        lines += _titled(block)
    if findings.tests:
        lines += [*table(("first", "second", "first - second", "two-tailed t-test", "t", "p"), map_tests(findings.tests)), ""]
    lines += [f"- {note}" for note in findings.notes]
    return "\n".join(lines) + "\n"


def _titled(block: Table) -> list[str]:
    return [f"## {block.title}", "", *table(block.header, block.rows), ""]


def _listed(rows: Sequence[Row]) -> list[str]:
    """Every number in a line of its own; the column of sound measures only where there is one."""
    sound = any(row.sound is not None for row in rows)
    header = ["number", "published", "ours (95 % interval)", "difference", *(["sound measure"] if sound else []), "unit"]
    cells = []
    for row in rows:
        one = row.published
        ours, gap = estimate_text(row.ours, one.unit), difference_text(row.ours, one.value, one.unit)
        beside = [estimate_text(row.sound, one.unit)] if sound else []
        cells.append([one.what, published_text(one.value), ours, gap, *beside, one.unit])
    return table(header, cells)


def map_tests(tests: Sequence[TTest]) -> list[tuple[str, ...]]:
    """The rows of the table of tests."""
    return [
        (
            test.first,
            test.second,
            f"{test.difference:+.{_digits('%')}f}",
            f"{test.kind} ({test.first_count} and {test.second_count})",
            "-" if test.statistic is None else f"{test.statistic:.2f}",
            "-" if test.p is None else f"{test.p:.2g}",
        )
        for test in tests
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def estimate_of(values: Sequence[float] | None) -> Estimate | None:
    """Mean and interval of what was measured, one number for each repetition; None where nothing was."""
    return None if values is None else over_repetitions(values)


def estimate_text(estimate: Estimate | None, unit: str = "%") -> str:
    """A mean with its interval; a mean radius and the lower end of its interval are rounded down, never up.

    Few trainings that differ much have an interval wider than what the number can be: it is cut to that.
    """
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return _down(estimate.mean, unit)
    least, most = _RANGES[unit]
    low, high = max(estimate.low, least), min(estimate.high, most)
    return f"{_down(estimate.mean, unit)} ({_down(low, unit)} to {high:.{_digits(unit)}f})"


def published_text(value: float | None) -> str:
    """A number as its paper prints it."""
    return "-" if value is None else f"{value:g}"


def difference_text(ours: Estimate | None, published: float | None, unit: str = "%") -> str:
    """Our mean minus the published number, with its sign.

    It is the difference of the two numbers as ``estimate_text`` and ``published_text`` show them, so that a reader who
    subtracts finds the same; where a paper prints more digits than we show, it is rounded down. As a mean radius is shown
    rounded down, no difference of radii is above the true one.
    """
    if ours is None or published is None:
        return "-"
    gap = Decimal(_down(ours.mean, unit)) - Decimal(published_text(published))
    return f"{gap.quantize(Decimal(1).scaleb(-_digits(unit)), rounding=ROUND_FLOOR):+f}"


def _digits(unit: str) -> int:
    return 3 if unit == RADIUS else 2


def _down(value: float, unit: str) -> str:
    return format_down(value, _digits(unit)) if unit == RADIUS else f"{value:.{_digits(unit)}f}"


def level_table(done: Sequence[Measured], methods: Sequence[str], sizes: Sequence[float]) -> Table:
    """A row for each method and measure, a column for each budget; sizes in the papers' scale."""
    budgets = gather.budgets_of(done)
    measures = dict(_measures(done, sizes))
    rows = tuple(
        (
            METHODS[method].label,
            words,
            *(estimate_text(over_repetitions(gather.values(done, method, read, epsilon))) for epsilon in budgets),
        )
        for method in methods
        for words, read in measures.items()
    )
    return Table("Accuracy (%)", ("method", "measure", *(f"epsilon {epsilon:g}" for epsilon in budgets)), rows)


def _measures(done: Sequence[Measured], sizes: Sequence[float]) -> Iterator[tuple[str, gather.Reading]]:
    yield "no attack", gather.clean
    for size in sizes:
        under = [gather.conventional(attack, size) for attack in gather.attacks_of(done)]
        yield f"size {size:g}: mean over the papers' attacks", gather.mean_of(under)
        if gather.has_adaptive(done, size):
            yield f"size {size:g}: PGD that sees the noise", gather.adaptive(size)
