"""Panels of lines with bands: means over repetitions, and 95 % t-intervals of them around.

Lines are told apart in grey too: each colour has a mark of its own, and dashes say what kind of line it is.
What is refuted is red.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinproof.papers.findings import Line, Panel
from twinproof.papers.legend import name_above, name_below, name_beside
from twinproof.papers.picture import BROKEN, BROKEN_TOO, INK, MUTED, PALETTE, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (3.1, 2.5)
_ALONE = 4.6  # inches: a panel that has the sheet to itself
_LETTERS = 19  # of a caption, to an inch
_NAME = 0.155  # inches that a name takes under a column
_LOOKS: dict[str, dict[str, Any]] = {
    "sound": {"linestyle": "-", "linewidth": 2.0},
    "weaker": {"linestyle": "--", "linewidth": 1.3},
    "paper": {"linestyle": ":", "linewidth": 1.8},
    "plain": {"linestyle": "-", "linewidth": 1.5},
    "reference": {"linestyle": "-.", "linewidth": 1.5},
    "printed": {"linestyle": ":", "linewidth": 1.0, "markersize": 5, "markerfacecolor": "none", "markeredgewidth": 0.9},
}
_MARKS = ("o", "s", "^", "D", "v", "P", "X", ">", "h")
_FEW = 12  # places that can all be marked
_APART = 0.22  # of the panel's diagonal: marks on a line with more places, shifted from line to line
_ROOM = 0.12  # of a fitted y-axis, beyond the means


def draw_panels(
    panels: Sequence[Panel], caption: str, *, columns: int, names_above: bool = False, names_below: bool = False
) -> Figure:
    """All panels on one sheet. Names stand in the places behind the last panel, certificates first; or in their first panel.

    With ``names_above`` they stand above all panels: for panels that share most of their lines and leave no place free. With
    ``names_below`` each column's stand under it: for columns that share none.
    """
    from matplotlib.figure import Figure

    heights = [_PANEL[1]] * math.ceil(len(panels) / columns)
    if names_below:
        heights.append(_NAME * (1 + max(len(panel.lines) + bool(panel.printed) for panel in panels)))
    width = _PANEL[0] * columns if columns > 1 else _ALONE
    sheet = Figure(figsize=(width, sum(heights) + 0.35), layout="constrained")
    grid = {"height_ratios": heights}
    axes = list(sheet.subplots(len(heights), columns, squeeze=False, gridspec_kw=grid).reshape(-1))
    used, spare = axes[: len(panels)], axes[len(panels) :]
    for place in spare:
        place.set_axis_off()
    reds = _reds(panels)
    for place, panel in zip(used, panels, strict=True):
        _draw(place, panel, reds)
    if names_above:
        name_above(sheet, used)
    elif names_below:
        name_below(used, spare[-columns:])
    else:
        name_beside(used, panels, spare)
    wrapped = textwrap.fill(caption, round(_LETTERS * width))
    sheet.supxlabel(wrapped, x=0.01, ha="left", fontsize=6.8, color=MUTED)
    return sheet


def _reds(panels: Sequence[Panel]) -> dict[int, str]:
    """A red for each colour of a refuted line, the same in all panels: two methods as published, with their bands."""
    refuted = dict.fromkeys(line.colour for panel in panels for line in panel.lines if line.kind == "paper")
    return {colour: (BROKEN, BROKEN_TOO)[number % 2] for number, colour in enumerate(refuted)}


def _draw(axes: Axes, panel: Panel, reds: Mapping[int, str]) -> None:
    for line in (*panel.lines, *panel.printed):
        _draw_line(axes, line, reds, shares=panel.shares)
    axes.set_title(panel.title, loc="left", fontsize=8.5)
    axes.set_xlabel(panel.x_label if panel.end is None else f"{panel.x_label}; 0 beyond", fontsize=7.5)
    axes.set_ylabel(panel.y_label, fontsize=7.5)
    axes.set_ylim(*y_range(panel))
    if panel.logarithmic:
        from matplotlib.ticker import NullLocator

        places = sorted({place for line in panel.lines for place in line.places})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.end is not None:
        axes.set_xlim(-0.02 * panel.end, panel.end)
    axes.tick_params(labelsize=7, colors=MUTED, labelcolor=INK)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def y_range(panel: Panel) -> tuple[float, float]:
    """From 0 to 100, or a little beyond all means, from 0 on where shares differ much.

    Bands may be cut off: that of two trainings can be ten times as high as everything else.
    """
    means = [one.mean for line in (*panel.lines, *panel.printed) for one in line.estimates]
    if not panel.fitted or not means:
        return -2.0, 102.0
    low, high = min(means), max(means)
    if panel.shares and low <= high / 2:
        top = max(1.0, high)
        return -_ROOM / 4 * top, (1 + _ROOM) * top
    room = _ROOM * (high - low) or 1.0
    return low - room, high + room


def _draw_line(axes: Axes, line: Line, reds: Mapping[int, str], *, shares: bool) -> None:
    estimates = line.estimates
    colour = reds[line.colour] if line.kind == "paper" else PALETTE[line.colour % len(PALETTE)]
    look = {"markersize": 3.5, **_LOOKS[line.kind]}
    if line.kind == "printed" and len(line.places) == 1:
        look["linestyle"] = "none"  # nor in the legend
    axes.plot(line.places, [one.mean for one in estimates], color=colour, label=line.label, **_marks(line), **look)
    banded = [
        (place, max(0.0, one.low) if shares else one.low, min(100.0, one.high) if shares else one.high)
        for place, one in zip(line.places, estimates, strict=True)
        if one.low is not None and one.high is not None
    ]
    if banded:
        places, lows, highs = zip(*banded, strict=True)
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)


def _marks(line: Line) -> dict[str, Any]:
    """A mark at every place, or here and there on a long line: where another line has none, so that both are seen."""
    if not line.marked:
        return {}
    marks: dict[str, Any] = {"marker": _MARKS[line.colour % len(_MARKS)]}
    if len(line.places) > _FEW:
        marks["markevery"] = (_APART * (line.colour % len(_MARKS)) / len(_MARKS), _APART)
    return marks
