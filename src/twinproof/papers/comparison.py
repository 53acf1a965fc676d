"""Published, ours, difference: one row for each number that a paper prints, as records and as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twinproof.papers.experiment import Experiment, Published
from twinproof.papers.findings import Findings
from twinproof.papers.statistics import Estimate, TTest, over_repetitions


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
        """The entry of a results file."""
        return {
            "published": self.published.as_dict(),
            "ours": None if self.ours is None else self.ours.as_dict(),
            "difference": self.difference,
            "sound": None if self.sound is None else self.sound.as_dict(),
        }


def compare(experiment: Experiment, findings: Findings) -> list[Row]:
    """A row for each published number of the experiment."""
    return [
        Row(number, _estimate(findings.ours.get(number.key)), _estimate(findings.sound.get(number.key)))
        for number in experiment.published
    ]


def markdown(experiment: Experiment, findings: Findings, caption: str, command: str) -> str:
    """The page of a result: what, by which command, the rows, the tests, and the notes that say how to read them."""
    lines = [f"# {experiment.name}: {experiment.item}", "", f"{experiment.paper}. {experiment.shows}.", ""]
    lines += [f"`{command}`", "", caption, ""]
    rows = compare(experiment, findings)
    if rows:
        cells = [
            (one.what, f"{one.value:g}", _text(row.ours), _signed(row.difference), _text(row.sound), one.unit)
            for row, one in ((row, row.published) for row in rows)
        ]
        lines += table(("number", "published", "ours (95 % interval)", "difference", "sound measure", "unit"), cells)
    if findings.tests:
        lines += ["", *table(("first", "second", "first - second", "two-tailed t-test", "t", "p"), map_tests(findings.tests))]
    lines += ["", *(f"- {note}" for note in findings.notes)]
    return "\n".join(lines) + "\n"


def map_tests(tests: Sequence[TTest]) -> list[tuple[str, ...]]:
    """The rows of the table of tests."""
    return [
        (
            test.first,
            test.second,
            _signed(test.difference),
            f"{test.kind} ({test.first_count} and {test.second_count})",
            "-" if test.statistic is None else f"{test.statistic:.2f}",
            "-" if test.p is None else f"{test.p:.2g}",
        )
        for test in tests
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _estimate(values: Sequence[float] | None) -> Estimate | None:
    return None if values is None else over_repetitions(values)


def _text(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
