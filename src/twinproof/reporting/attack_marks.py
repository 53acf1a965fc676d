"""How attacks are told apart in plots and legends: methods by colour and mark, protocols by dashes and filling.

Colour is never the only cue: in black and white the marks, the dashes and the filling remain.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinproof.evaluation.protocols import Protocol
from twinproof.reporting.canvas import INK, SERIES, SHEET, colour_variable
from twinproof.reporting.markup import Markup, element

PROTOCOL_NAMES = {Protocol.ADAPTIVE: "adaptive", Protocol.PAPER: "papers'"}
# The name that matplotlib has for the mark, and its outline in the legend, around (17, 6).
_MARKS = {
    "fgsm": ("o", "M13.5 6a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z"),
    "ifgsm": ("s", "M13.9 2.9h6.2v6.2h-6.2Z"),
    "mim": ("^", "M17 2l4 7.4h-8Z"),
    "pgd": ("D", "M17 1.6l4.4 4.4l-4.4 4.4l-4.4 -4.4Z"),
}
_PAPER_DASHES = (4.0, 2.0)


@dataclass(frozen=True)
class Mark:
    """The look of one curve; ``width`` is that of its line."""

    marker: str
    outline: str
    colour: str
    dashes: tuple[float, ...]
    filled: bool
    width: float

    @property
    def face(self) -> str:
        """The colour inside the mark."""
        return self.colour if self.filled else SHEET


_CROSS = "M13.5 3.9l1.6 -1.6l1.9 1.9l1.9 -1.9l1.6 1.6l-1.9 2.1l1.9 2.1l-1.6 1.6l-1.9 -1.9l-1.9 1.9l-1.6 -1.6l1.9 -2.1Z"
WORST = Mark("X", _CROSS, INK, (), filled=True, width=2.2)


def mark_of(protocol: str, attack: str) -> Mark:
    """The look of one method under one protocol; methods that nobody foresaw share the last mark."""
    names = list(_MARKS)
    place = names.index(attack) if attack in _MARKS else len(names) - 1
    marker, outline = _MARKS[names[place]]
    paper = protocol == Protocol.PAPER
    return Mark(marker, outline, SERIES[1 + place], _PAPER_DASHES if paper else (), not paper, 1.3)


def legend_entry(mark: Mark, words: str) -> Markup:
    """The mark on a piece of its line, and what it means."""
    colour = colour_variable(mark.colour)
    dashes = " ".join(str(1.5 * length) for length in mark.dashes) or None
    line = element(
        "line", x1=0, y1=6, x2=34, y2=6, stroke_dasharray=dashes, style=f"stroke: {colour}; stroke-width: {mark.width}"
    )
    shape = element("path", d=mark.outline, style=f"stroke: {colour}; stroke-width: 1.3; fill: {colour_variable(mark.face)}")
    picture = element("svg", line, shape, viewBox="0 0 34 12", class_="stroke", aria_hidden="true")
    return element("li", picture, words)
