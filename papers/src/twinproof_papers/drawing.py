"""Panels of lines with bands: means over repetitions, and 95 % t-intervals around them.

Lines are told apart in grey too: each colour has a mark of its own, and dashes say what kind of line it is. What is refuted is
red.
"""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from twinproof.files import write_atomic
from twinproof_papers.findings import Line, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK, MUTED, RULE = "#222222", "#5f5f5f", "#dddddd"
# Hues of Okabe and Ito, dark enough for thin lines; dashes and marks tell lines apart without them.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6b6b6b", "#8c6d00", "#3E9BCB", "#111111", "#7A3E9D")
BROKEN, BROKEN_TOO = "#CC0033", "#6B0019"  # what is refuted, and a second method of which it is
_SETTINGS: Mapping[Any, Any] = {
    "font.size": 8.5,
    "svg.hashsalt": "twinproof",
    "svg.fonttype": "none",  # text stays text: small, and searchable
    "axes.edgecolor": MUTED,
    "text.color": INK,
}
_DOTS = 110


def write_picture(make: Callable[[], Figure], path: Path) -> None:
    """Draws and saves in one step; the kind of file follows from the name (``.svg`` or ``.png``)."""
    with mpl.rc_context(dict(_SETTINGS)):
        path.parent.mkdir(parents=True, exist_ok=True)
        content, kind = BytesIO(), path.suffix.removeprefix(".")
        make().savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None, dpi=_DOTS)
    write_atomic(path, content.getvalue())


_LOOK: dict[str, Any] = {"frameon": False, "fontsize": 6.8, "labelcolor": INK, "handlelength": 2.6}
_INCHES_PER_LETTER, _HANDLE = 0.049, 0.5


def _name_above(sheet: Figure, axes: Sequence[Axes]) -> None:
    """Every name in a block above the panels, in as few rows as its longest name allows."""
    named = _named(axes)
    if named:
        columns = _columns(list(named), sheet.get_figwidth())
        sheet.legend(named.values(), named.keys(), loc="outside upper left", ncols=columns, **_LOOK)


def _name_below(axes: Sequence[Axes], below: Sequence[Axes]) -> None:
    for column, place in enumerate(below):
        named = _named(axes[column :: len(below)])
        place.legend(named.values(), named.keys(), loc="upper left", ncols=1, **_LOOK)


def _name_beside(axes: Sequence[Axes], panels: Sequence[Panel], spare: Sequence[Axes]) -> None:
    named: dict[str, Any] = {}
    for place, panel in zip(axes, panels, strict=True):
        new = {label: handle for label, handle in _named([place]).items() if label not in named}
        named |= new
        beside = spare[1:2] if all(line.kind == "plain" for line in panel.lines) else spare[:1]
        if new and not beside:
            place.legend(**_LOOK)
        elif new:
            shown = {label: handle for label, handle in named.items() if label in new or label in _labels(beside[0])}
            beside[0].legend(shown.values(), shown.keys(), loc="center left", **_LOOK)


def _named(axes: Sequence[Axes]) -> dict[str, Line2D]:
    """Handles by name, the first of each; a name that lines of several colours share gets one of none."""
    named: dict[str, Line2D] = {}
    colours: dict[str, set[Any]] = {}
    for place in axes:
        for line in place.get_lines():
            label = str(line.get_label())
            named.setdefault(label, line)
            colours.setdefault(label, set()).add(line.get_color())
    return {label: _greyed(handle) if len(colours[label]) > 1 else handle for label, handle in named.items()}


def _greyed(handle: Line2D) -> Line2D:
    grey = copy.copy(handle)
    grey.set_color(MUTED)
    grey.set_markeredgecolor(MUTED)
    return grey


def _columns(names: Sequence[str], inches: float) -> int:
    """As many as fit side by side, and no more than fill every row but the last."""
    longest = max(len(name) for name in names)
    most = max(1, math.floor(inches / (_HANDLE + _INCHES_PER_LETTER * longest)))
    return math.ceil(len(names) / math.ceil(len(names) / most))


def _labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


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


def draw_panels(panels: Sequence[Panel], caption: str, *, columns: int, names: str = "beside") -> Figure:
    """All panels on one sheet.

    ``names`` of lines stand ``beside`` (behind the last panel, certificates first, or in their first panel), ``above`` all
    panels where those share most of their lines and leave no place free, or ``below`` each column where columns share none.
    """
    heights = [_PANEL[1]] * math.ceil(len(panels) / columns)
    if names == "below":
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
    if names == "above":
        _name_above(sheet, used)
    elif names == "below":
        _name_below(used, spare[-columns:])
    else:
        _name_beside(used, panels, spare)
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
