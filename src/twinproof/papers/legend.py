"""Where the names of the lines stand: above all panels, under their column, or beside the panels. Each name once."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twinproof.papers.findings import Panel
from twinproof.papers.picture import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_LOOK: dict[str, Any] = {"frameon": False, "fontsize": 6.8, "labelcolor": INK, "handlelength": 2.6}
_INCHES_PER_LETTER, _HANDLE = 0.049, 0.5


def name_above(sheet: Figure, axes: Sequence[Axes]) -> None:
    """Every name in a block above the panels, in as few rows as its longest name allows."""
    named = _named(axes)
    if named:
        columns = _columns(list(named), sheet.get_figwidth())
        sheet.legend(named.values(), named.keys(), loc="outside upper left", ncols=columns, **_LOOK)


def name_below(axes: Sequence[Axes], below: Sequence[Axes]) -> None:
    """The names of each column in the place ``below`` it."""
    for column, place in enumerate(below):
        named = _named(axes[column :: len(below)])
        place.legend(named.values(), named.keys(), loc="upper left", ncols=1, **_LOOK)


def name_beside(axes: Sequence[Axes], panels: Sequence[Panel], spare: Sequence[Axes]) -> None:
    """In a free place, or where its line is first."""
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
    """The names in a legend that was drawn before."""
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]
