"""The four plots of a report: certified accuracy, radii, progress, and several runs in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.certified import radius_name
from twinproof.reporting.canvas import BAD, GOOD, INK, MUTED, SERIES, SILENT, Frame, plot, stacked_bars, style_axes
from twinproof.reporting.facts import Progress
from twinproof.reporting.markup import Markup
from twinproof.reporting.radius_words import RadiusWords

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, Interval]]
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (1.5, 1.5), (6, 2, 1.5, 2), (3, 1.5), (8, 2, 2, 2, 2, 2))
_MOST_BANDS = 3


def claim_colour(words: RadiusWords) -> str:
    """The colour of radii: never the good one where they are no promise."""
    return BAD if words.claim else GOOD


@dataclass(frozen=True)
class RadiusCounts:
    """How many inputs fall in each bin of radii, and how many got no answer; ``edges`` has one entry more than the counts."""

    edges: tuple[float, ...]
    correct: tuple[int, ...]
    wrong: tuple[int, ...]
    abstained: int


def curve_plot(name: str, curve: Curve, clean: Interval | None, words: RadiusWords) -> Markup:
    """Certified accuracy against radius with its band, and the network's own accuracy as a dashed line."""

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        _draw_curve(axes, curve, claim_colour(words), (), band=True)
        if clean is not None:
            axes.axhline(clean.value, color=INK, linewidth=1.1, linestyle=(0, (4, 3)))
        share_axes(axes, frame, words.axis, "share of test inputs", curve[-1][0])

    return plot(name, f"{words.accuracy} against radius, falling from the left", draw)


def comparison_plot(name: str, curves: Sequence[Curve], radius: str) -> Markup:
    """Certified accuracy of several runs, all in one norm, told apart by colour and by dashes."""
    right = max(curve[-1][0] for curve in curves)

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        for index, curve in enumerate(curves):
            colour, dashes = SERIES[index % len(SERIES)], DASHES[index % len(DASHES)]
            _draw_curve(axes, curve, colour, dashes, band=len(curves) <= _MOST_BANDS)
        share_axes(axes, frame, radius, "share of test inputs", right)

    return plot(name, f"Share of test inputs against {radius} of {len(curves)} runs", draw)


def histogram_plot(name: str, counts: RadiusCounts, words: RadiusWords) -> Markup:
    """Radii of correct and wrong answers, stacked; abstentions, which have no radius, stand apart on the left."""
    lefts, width = counts.edges[:-1], counts.edges[1] - counts.edges[0]

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        stacked_bars(axes, lefts, width, counts.correct, counts.wrong)
        axes.bar([-_apart(frame) * width], [counts.abstained], width=0.88 * width, align="edge", color=SILENT)
        _count_axes(axes, frame, counts, words)

    return plot(name, f"Number of test inputs by {words.axis}", draw)


def progress_plot(name: str, progress: Sequence[Progress]) -> Markup:
    """Test accuracy and epsilon spent against training steps, in two panels; only the first where nothing was spent."""
    accuracy = [(line.step, line.accuracy) for line in progress if line.accuracy is not None]
    epsilon = [(line.step, line.epsilon) for line in progress if line.epsilon is not None]
    panels = [panel for panel in ((accuracy, "accuracy on the test set", GOOD), (epsilon, "epsilon spent", BAD)) if panel[0]]

    def draw(figure: Figure, frame: Frame) -> None:
        figure.set_layout_engine("constrained", wspace=0.08, hspace=0.08)
        rows, columns = (len(panels), 1) if frame.narrow else (1, len(panels))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (points, title, colour) in zip(grid.flat, panels, strict=True):
            _draw_progress(axes, frame, points, title, colour)

    description = f"{' and '.join(title for _, title, _ in panels)} against training steps"
    return plot(name, description.capitalize(), draw, taller=1.6 if len(panels) > 1 else 1.0)


def _draw_curve(axes: Axes, curve: Curve, colour: str, dashes: tuple[float, ...], *, band: bool) -> None:
    """Steps that drop to the value at the right end of each stretch: between two radii the drawing never shows too much."""
    radii = [radius for radius, _ in curve]
    if band:
        lows, highs = [interval.low for _, interval in curve], [interval.high for _, interval in curve]
        axes.fill_between(radii, lows, highs, step="pre", color=colour, alpha=0.18, linewidth=0)
    line = axes.step(radii, [interval.value for _, interval in curve], where="pre", color=colour, linewidth=1.8)[0]
    if dashes:
        line.set_dashes(dashes)


def _draw_progress(axes: Axes, frame: Frame, points: Sequence[tuple[int, float]], title: str, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    steps, values = [step for step, _ in points], [value for _, value in points]
    style_axes(axes, frame, "training steps", title)
    axes.plot(steps, values, color=colour, linewidth=1.6, marker="o", markersize=3)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if colour == GOOD:
        _percent_ticks(axes)


def share_axes(axes: Axes, frame: Frame, x_label: str, y_label: str, right: float) -> None:
    """Axes for shares of inputs, from 0 to 100 %, against something that goes from 0 to ``right``."""
    style_axes(axes, frame, x_label, y_label)
    axes.set_xlim(0, right)
    _percent_ticks(axes)
    axes.locator_params(axis="x", nbins=4 if frame.narrow else 8)


def _percent_ticks(axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])


def _apart(frame: Frame) -> float:
    """How many bins left of zero the abstentions stand, so that their label does not touch the zero."""
    return 3.4 if frame.narrow else 1.8


def _count_axes(axes: Axes, frame: Frame, counts: RadiusCounts, words: RadiusWords) -> None:
    from matplotlib.ticker import MaxNLocator

    style_axes(axes, frame, words.axis, "test inputs")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    right, width = counts.edges[-1], counts.edges[1] - counts.edges[0]
    ticks = [tick for tick in MaxNLocator(3 if frame.narrow else 7).tick_values(0, right) if 0 <= tick <= right]
    apart = _apart(frame)
    axes.set_xticks([(0.44 - apart) * width, *ticks], ["none", *map(radius_name, ticks)])
    axes.set_xlim(-(apart + 0.5) * width, right)
    axes.axvline((0.44 - apart / 2) * width, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
