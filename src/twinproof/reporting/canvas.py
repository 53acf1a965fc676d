"""Draws with matplotlib into SVG inside a page: in the colours of the page, with ids that no other plot has.

A plot is drawn twice, for wide and for narrow screens, because a wide one squeezed into a phone cannot be read; the style sheet
shows one of them. Text stays text, in the page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# matplotlib has no CSS variables: it draws with these stand-ins, which are then replaced by the variables of style.css.
INK, MUTED, GRID, SHEET = "#010201", "#010202", "#010203", "#01020d"
GOOD, BAD, SILENT = "#010204", "#010205", "#010206"
SERIES = ("#010207", "#010208", "#010209", "#01020a", "#01020b", "#01020c")
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--rule",
    SHEET: "--sheet",
    GOOD: "--plot-good",
    BAD: "--plot-bad",
    SILENT: "--plot-silent",
    **{colour: f"--series-{index}" for index, colour in enumerate(SERIES)},
}
_PROLOGUE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_SVG_ATTRIBUTES = re.compile(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"')


@dataclass(frozen=True)
class Frame:
    """The size of one variant of a plot, in inches of 72 units; ``narrow`` ones have less room for ticks and words."""

    width: float
    height: float
    font: float
    narrow: bool


WIDE = Frame(width=7.6, height=3.3, font=8.0, narrow=False)
NARROW = Frame(width=3.5, height=3.0, font=8.5, narrow=True)

Draw = Callable[["Figure", Frame], None]


def colour_variable(colour: str) -> str:
    """The CSS value that stands for one of the colours above."""
    return f"var({_VARIABLES[colour]})"


def plot(name: str, description: str, draw: Draw, *, taller: float = 1.0) -> Markup:
    """Both variants of a plot; ``name`` must be unique in the page, ``description`` is for screen readers.

    ``taller`` stretches the narrow variant, for plots whose panels are stacked there.
    """
    tall = Frame(NARROW.width, NARROW.height * taller, NARROW.font, narrow=True)
    pictures = (
        Markup('<div class="plot {}" role="img" aria-label="{}">{}</div>').format(
            kind, description, _drawn(f"{name}-{kind}", draw, frame)
        )
        for frame, kind in ((WIDE, "wide"), (tall, "narrow"))
    )
    return Markup("").join(pictures)


def style_axes(axes: Axes, frame: Frame, x_label: str, y_label: str) -> None:
    """Horizontal rules, no box, labels in the page's muted ink."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0, pad=4, labelcolor=MUTED, labelsize=frame.font)
    axes.tick_params(axis="x", length=3, color=MUTED)
    axes.set_xlabel(x_label, color=INK, fontsize=frame.font, labelpad=5)
    axes.set_title(y_label, color=INK, fontsize=frame.font, loc="left", pad=8)


def stacked_bars(axes: Axes, lefts: Sequence[float], width: float, lower: Sequence[int], upper: Sequence[int]) -> None:
    """Filled bars with hatched ones on top, which need no colour to be told apart."""
    axes.bar(lefts, lower, width=0.88 * width, align="edge", color=GOOD)
    places = [place for place, count in enumerate(upper) if count]  # a bar of height 0 would draw its edge
    axes.bar(
        [lefts[place] for place in places],
        [upper[place] for place in places],
        bottom=[lower[place] for place in places],
        width=0.88 * width,
        align="edge",
        facecolor="none",
        edgecolor=BAD,
        hatch="/////",
        linewidth=1,
    )


def _drawn(name: str, draw: Draw, frame: Frame) -> Markup:
    # hashsalt makes the same plot the same bytes; no mathematics in text, so that a dollar sign stays one
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "twinproof", "text.parse_math": False, "hatch.linewidth": 1.2}
    ):
        figure = Figure(figsize=(frame.width, frame.height), layout="constrained", facecolor="none")
        draw(figure, frame)
        for axes in figure.axes:
            axes.set_facecolor("none")
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None})
    return Markup(_embeddable(target.getvalue(), name))  # matplotlib escapes the text in it


def _embeddable(svg: str, name: str) -> str:
    """The SVG without prologue and fixed size, with ids of its own and the page's colours."""
    body = _PROLOGUE.sub("", svg).strip()
    head, rest = body.split(">", 1)
    body = _SVG_ATTRIBUTES.sub("", head) + ' aria-hidden="true" focusable="false">' + rest
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace("xlink:href", "href").replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    body = re.sub(r'<style type="text/css">.*?</style>', "", body, flags=re.DOTALL)  # it would reach the whole page
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    return body
