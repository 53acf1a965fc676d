"""What a reproduction found: means over repetitions, t-tests, panels of lines, tables.

The unit of repetition is a training from scratch with fresh randomness. Accuracies on test images of one trained model share
that model: an interval over images says how well this model was measured, never how another training would turn out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student
from scipy.stats import ttest_ind, ttest_rel

from twinproof.errors import ConfigError, DataError
from twinproof_papers.cell import Numbers

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions and its t-interval; ``low`` and ``high`` are None where one repetition allows none."""

    mean: float
    low: float | None
    high: float | None
    repetitions: int


def over_repetitions(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of one number for each repetition, with the two-sided Student interval."""
    if not values:
        raise DataError("a mean needs at least one repetition", got=0, wanted="one number for each repetition")
    if not 0 < confidence < 1:
        raise ConfigError("the confidence is not usable", where="confidence", got=confidence, wanted="between 0 and 1")
    mean, count = fmean(values), len(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    width = float(student.ppf(0.5 + confidence / 2, count - 1)) * stdev(values) / math.sqrt(count)
    return Estimate(mean, mean - width, mean + width, count)


@dataclass(frozen=True)
class TTest:
    """A two-tailed t-test of "``first`` and ``second`` have the same mean"; ``difference`` is first minus second.

    ``statistic`` and ``p`` are None where the numbers allow no test: fewer than two, or none of them varies.
    """

    first: str
    second: str
    kind: str
    difference: float
    statistic: float | None
    degrees: float | None
    p: float | None
    first_count: int
    second_count: int


WELCH = "Welch, over independent repetitions"
PAIRED = "paired, over settings"


def welch_test(first: str, second: str, left: Sequence[float], right: Sequence[float]) -> TTest:
    """Welch's test of two groups of independent repetitions, whose variances may differ."""
    if not left or not right:
        raise DataError("a test needs two groups", got=f"{len(left)} and {len(right)} numbers", wanted="at least one in each")
    counts, gap = (len(left), len(right)), fmean(left) - fmean(right)
    if min(counts) < 2 or (_same(left) and _same(right)):
        return TTest(first, second, WELCH, gap, None, None, None, *counts)
    found = ttest_ind(left, right, equal_var=False)
    return TTest(first, second, WELCH, gap, float(found.statistic), float(found.df), float(found.pvalue), *counts)


def paired_test(first: str, second: str, left: Sequence[float], right: Sequence[float]) -> TTest:
    """The paired test over settings (attack, size, budget), each of which both methods met.

    Settings share models and attacks, so that they are not independent and this p is smaller than it should be. It is here
    because published p-values of that size can only come from such a count.
    """
    if not left or len(left) != len(right):
        raise DataError(
            "a paired test needs pairs", got=f"{len(left)} and {len(right)} numbers", wanted="equally many, above 0"
        )
    pairs, count = [one - other for one, other in zip(left, right, strict=True)], len(left)
    if count < 2 or _same(pairs):
        return TTest(first, second, PAIRED, fmean(pairs), None, None, None, count, count)
    found = ttest_rel(left, right)
    statistic, p = float(found.statistic), float(found.pvalue)
    return TTest(first, second, PAIRED, fmean(pairs), statistic, count - 1.0, p, count, count)


def _same(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-9 * max(abs(value) for value in values)


_LEAST_SHARE = 0.2  # of the x-axis that a cropped panel shows at least


@dataclass(frozen=True)
class Line:
    """One line of a plot: for each place on the x-axis, one number for each repetition.

    ``kind`` decides its look: ``paper`` (a published bound or method that does not keep its promise), ``sound`` (the best
    bound that holds; our own method), ``weaker`` (holds, says less; a method that never saw noise), ``reference`` (the upper
    end, without privacy), ``printed`` (numbers that a paper prints for the line of the same colour) or ``plain`` (all else).
    """

    label: str
    kind: str
    colour: int
    places: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...]
    marked: bool = True

    def __post_init__(self) -> None:
        if len(self.places) != len(self.samples) or len({len(sample) for sample in self.samples}) > 1:
            raise DataError(
                "a line has gaps",
                where=self.label,
                got=f"{len(self.places)} places, samples of {sorted({len(sample) for sample in self.samples})}",
                wanted="equally many repetitions at every place",
            )

    @property
    def estimates(self) -> list[Estimate]:
        """Mean and interval over repetitions, place by place."""
        return [over_repetitions(sample) for sample in self.samples]

    def as_dict(self) -> dict[str, Any]:
        rows = zip(self.places, self.samples, self.estimates, strict=True)
        points = [{"x": place, "values": list(sample), **asdict(estimate)} for place, sample, estimate in rows]
        return {"label": self.label, "kind": self.kind, "points": points}


def trainings_words(repetitions: int) -> str:
    """What a caption says of the numbers: means and intervals over trainings, or that there is only one."""
    if repetitions == 1:
        return "One training, no interval"
    return f"Means of {repetitions} trainings with 95 % t-intervals over them"


SHARES = "% of test images"
"""What a y-axis shows unless a panel says otherwise: from 0 to 100."""


@dataclass(frozen=True)
class Panel:
    """One plot; its y-axis goes from 0 to 100 unless it is ``fitted`` to the lines.

    ``printed`` are the paper's own numbers, drawn over the lines; a results file has them among the published ones.
    """

    title: str
    x_label: str
    lines: tuple[Line, ...]
    logarithmic: bool = False
    cropped: bool = False
    y_label: str = SHARES
    fitted: bool = False
    printed: tuple[Line, ...] = ()

    @property
    def shares(self) -> bool:
        """Whether nothing below 0 or above 100 can be."""
        return self.y_label == SHARES

    @property
    def end(self) -> float | None:
        """Where a cropped panel may end: a little behind the last place at which any line is above 0; None to show all."""
        above = [place for line in self.lines for place, sample in zip(line.places, line.samples, strict=True) if any(sample)]
        last, whole = max(above, default=0.0), max(place for line in self.lines for place in line.places)
        return max(1.15 * last, _LEAST_SHARE * whole) if self.cropped and 1.15 * last < whole else None

    def as_dict(self) -> dict[str, Any]:
        named = {"title": self.title, "x_label": self.x_label, "y_label": self.y_label}
        return {**named, "lines": [line.as_dict() for line in self.lines]}


@dataclass(frozen=True)
class Table:
    """Rows of text under one header, for a page."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.header) for row in self.rows):
            raise DataError(
                "a table has gaps", where=self.title, got="rows of other lengths", wanted=f"{len(self.header)} columns"
            )


@dataclass(frozen=True)
class Findings:
    """All of it. ``ours`` maps the key of a published number to our values, one for each repetition, in its unit.

    ``sound`` says for some keys which of our own, sound measures stands beside the papers' one. ``tables`` take the place of
    the plain list of numbers on the page, where a paper's own table has a better form; ``beside`` stand below either.
    ``cells_in`` names the experiment whose results file holds the same cells: they are not written twice. ``short`` has, by
    name of a cell, the numbers that a results file has of it where the cell itself holds far more than the figure is about.
    ``columns`` and ``names`` say how the panels are laid out (``drawing.draw_panels``).
    """

    panels: tuple[Panel, ...]
    tests: tuple[TTest, ...] = ()
    ours: Mapping[str, Sequence[float]] = field(default_factory=dict)
    sound: Mapping[str, Sequence[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    beside: tuple[Table, ...] = ()
    cells_in: str = ""
    short: Mapping[str, Numbers] = field(default_factory=dict)
    columns: int = 3
    names: str = "beside"
