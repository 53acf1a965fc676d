"""Panels of lines with bands: means over repetitions, and 95 % t-intervals of them around."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twinproof.papers.findings import Line, Panel
from twinproof.papers.picture import BROKEN, INK, MUTED, PALETTE, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (3.1, 2.5)
_LETTERS = 58  # of a caption that fit under one panel
_LOOKS: dict[str, dict[str, Any]] = {
    "sound": {"linestyle": "-", "linewidth": 2.0},
    "weaker": {"linestyle": "--", "linewidth": 1.3},
    "paper": {"linestyle": ":", "linewidth": 1.8},
    "plain": {"linestyle": "-", "linewidth": 1.5},
    "reference": {"linestyle": "-.", "linewidth": 1.5},
}
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 6.8, "labelcolor": INK, "handlelength": 2.6}
_NAMES_PER_PANEL = 1.4
_MARKS = ("o", "s", "^", "D", "v", "P")


def draw_panels(panels: Sequence[Panel], caption: str, *, columns: int, names_above: bool = False) -> Figure:
    """All panels on one sheet. Names stand in the places behind the last panel, certificates first; or in their first panel.

    With ``names_above`` they stand above all panels: for panels that share most of their lines and leave no place free.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / columns)
    sheet = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + 0.35), layout="constrained")
    axes = list(sheet.subplots(rows, columns, squeeze=False).reshape(-1))
    spare = axes[len(panels) :]
    for place in spare:
        place.set_axis_off()
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel)
    if names_above:
        _name_above(sheet, axes[: len(panels)], columns)
    else:
        _name_beside(axes[: len(panels)], panels, spare)
    wrapped = textwrap.fill(caption, _LETTERS * columns)
    sheet.supxlabel(wrapped, x=0.01, ha="left", fontsize=6.8, color=MUTED)
    return sheet


def _name_above(sheet: Figure, axes: Sequence[Axes], columns: int) -> None:
    """Every name once, in a block above the panels."""
    named: dict[str, Any] = {}
    for place in axes:
        handles, labels = place.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            named.setdefault(label, handle)
    wide = max(1, min(len(named), round(_NAMES_PER_PANEL * columns)))
    sheet.legend(named.values(), named.keys(), loc="outside upper left", ncols=wide, **_LEGEND)


def _name_beside(axes: Sequence[Axes], panels: Sequence[Panel], spare: Sequence[Axes]) -> None:
    """Each name once, in a free place, or where its line is first."""
    named: dict[str, Any] = {}
    for place, panel in zip(axes, panels, strict=True):
        handles, labels = place.get_legend_handles_labels()
        new = {label: handle for label, handle in zip(labels, handles, strict=True) if label not in named}
        named |= new
        beside = spare[1:2] if all(line.kind == "plain" for line in panel.lines) else spare[:1]
        if new and not beside:
            place.legend(**_LEGEND)
        elif new:
            shown = {label: handle for label, handle in named.items() if label in new or label in _labels(beside[0])}
            beside[0].legend(shown.values(), shown.keys(), loc="center left", **_LEGEND)


def _labels(axes: Axes) -> list[str]:
    """The names in a legend that was drawn before."""
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def _draw(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line, fitted=panel.fitted)
    axes.set_title(panel.title, loc="left", fontsize=8.5)
    axes.set_xlabel(panel.x_label, fontsize=7.5)
    axes.set_ylabel(panel.y_label, fontsize=7.5)
    if not panel.fitted:
        axes.set_ylim(-2, 102)
    if panel.logarithmic:
        from matplotlib.ticker import NullLocator

        places = sorted({place for line in panel.lines for place in line.places})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.end is not None:
        axes.set_xlim(-0.02 * panel.end, panel.end)
        axes.text(0.99, 0.04, "0 beyond", transform=axes.transAxes, ha="right", fontsize=6.5, color=MUTED)
    axes.tick_params(labelsize=7, colors=MUTED, labelcolor=INK)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_line(axes: Axes, line: Line, *, fitted: bool) -> None:
    estimates = line.estimates
    colour = BROKEN if line.kind == "paper" else PALETTE[line.colour % len(PALETTE)]
    mark = _MARKS[line.colour % len(_MARKS)] if line.marked else None
    axes.plot(
        line.places,
        [one.mean for one in estimates],
        color=colour,
        marker=mark,
        markersize=3,
        label=line.label,
        **_LOOKS[line.kind],
    )
    banded = [
        (place, one.low if fitted else max(0.0, one.low), one.high if fitted else min(100.0, one.high))
        for place, one in zip(line.places, estimates, strict=True)
        if one.low is not None and one.high is not None
    ]
    if banded:
        places, lows, highs = zip(*banded, strict=True)
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
