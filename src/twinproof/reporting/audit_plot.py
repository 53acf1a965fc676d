"""How far the closest change of each certified answer is, in radii."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinproof.reporting.audit_facts import RatioCounts
from twinproof.reporting.canvas import INK, MUTED, SILENT, Frame, plot, stacked_bars, style_axes
from twinproof.reporting.markup import Markup
from twinproof.reporting.radius_words import RadiusWords

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ratio_plot(name: str, counts: RatioCounts, words: RadiusWords) -> Markup:
    """A histogram with the radius as a line; certificates without a change stand apart on the right."""
    lefts, width = counts.edges[:-1], counts.edges[1] - counts.edges[0]
    right = counts.edges[-1]

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        stacked_bars(axes, lefts, width, counts.beyond, counts.inside)
        axes.bar([right + 1.5 * width], [counts.not_found], width=0.88 * width, align="edge", color=SILENT)
        axes.axvline(1.0, color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
        _label(axes, frame, right, width, words)

    return plot(name, "Number of certificates by the distance of the closest change of their answer, in radii", draw)


def _label(axes: Axes, frame: Frame, right: float, width: float, words: RadiusWords) -> None:
    from matplotlib.ticker import MaxNLocator

    style_axes(axes, frame, f"closest change of the answer, in {words.certified} {words.norm} radii", "certificates")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    whole = range(int(right) + 1)
    axes.set_xticks([*whole, right + 1.94 * width], [*map(str, whole), "none"])
    axes.set_xlim(0, right + 2.9 * width)
    axes.axvline(right + 0.75 * width, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
