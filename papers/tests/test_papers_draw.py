"""Pictures that can be read: lines that differ in grey, names beside and not over lines, axes that show the means."""

from __future__ import annotations

import io
from itertools import combinations
from typing import Any

import matplotlib.colors as colours
import numpy as np
import pytest

from twinproof_papers.drawing import BROKEN, BROKEN_TOO, MUTED, PALETTE, draw_panels, y_range
from twinproof_papers.findings import Line, Panel

PLACES = tuple(step / 20 for step in range(21))


def line(colour: int = 0, *, kind: str = "plain", marked: bool = True, places: tuple[float, ...] = PLACES) -> Line:
    return Line(f"{kind} {colour}", kind, colour, places, tuple((50.0 - 20 * place,) for place in places), marked)


def level(*means: float, spread: float = 0.0) -> Line:
    samples = tuple((mean - spread, mean + spread) for mean in means)
    return Line("a", "plain", 0, tuple(float(place) for place in range(len(means))), samples)


def test_lines_are_told_apart_without_colour() -> None:
    """Planted: lines of the same kind without marks, which differ in hue alone."""

    def looks(marked: bool) -> set[Any]:
        panel = Panel("", "", tuple(line(number, marked=marked) for number in range(len(PALETTE))))
        (axes,) = draw_panels([panel], "", columns=1).axes
        return {(drawn.get_marker(), drawn.get_linestyle()) for drawn in axes.get_lines()}

    assert len(looks(marked=True)) == len(PALETTE)
    assert len(looks(marked=False)) == 1


def test_marks_of_lines_that_lie_on_each_other_do_not() -> None:
    lines = tuple(line(number, places=tuple(step / 200 for step in range(201))) for number in range(len(PALETTE)))
    (axes,) = draw_panels([Panel("", "", lines)], "", columns=1).axes
    given: list[Any] = [drawn.get_markevery() for drawn in axes.get_lines()]
    assert all(abs(one[0] - other[0]) > 0.01 for one, other in combinations(given, 2))


@pytest.mark.parametrize(
    ("panel", "low", "high"),
    [
        (Panel("", "", (level(3.0, 4.0),)), -2, 102),
        (Panel("", "", (level(0.0, 40.0, spread=500.0),), fitted=True), -1.2, 44.8),
        (Panel("", "", (level(0.0, 0.0),), fitted=True), -0.03, 1.12),
        (Panel("", "", (level(97.0, 98.0),), fitted=True), 96.88, 98.12),
        (Panel("", "", (level(-3.0, -1.0, spread=50.0),), y_label="ln", fitted=True), -3.24, -0.76),
        (Panel("", "", (level(2.0),), y_label="ln", fitted=True), 1.0, 3.0),
        (Panel("", "", (level(90.0),), fitted=True, printed=(level(80.0),)), 78.8, 91.2),
        (Panel("", "", (Line("a", "plain", 0, (), ()),), fitted=True, y_label="ln"), -2, 102),
    ],
)
def test_axes_are_fitted_to_means_and_not_to_bands(panel: Panel, low: float, high: float) -> None:
    """Planted in the cases: bands of two trainings that are far wider than everything that is to be seen."""
    assert y_range(panel) == pytest.approx((low, high))


def test_bands_of_shares_end_at_0_and_100() -> None:
    for label, inside in (("% of test images", True), ("ln", False)):
        panel = Panel("", "", (level(5.0, 95.0, spread=20.0),), y_label=label)
        (axes,) = draw_panels([panel], "", columns=1).axes
        heights = np.concatenate([np.asarray(path.vertices)[:, 1] for path in axes.collections[0].get_paths()])
        assert bool(heights.min() >= 0 and heights.max() <= 100) is inside


def test_published_marks_have_one_grey_name() -> None:
    printed = tuple(Line("as published", "printed", number, (0.25,), ((40.0,),)) for number in range(2))
    sheet = draw_panels([Panel("", "", (line(0), line(1)), printed=printed)] * 2, "", columns=2, names_above=True)
    (legend,) = sheet.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain 0", "plain 1", "as published"]
    first, _, last = legend.get_lines()
    assert colours.to_hex(last.get_markeredgecolor()) == MUTED
    assert colours.to_hex(first.get_color()) == PALETTE[0].lower()
    assert last.get_linestyle() == "None", "one number is no line"


@pytest.mark.parametrize(("names", "columns", "rows"), [(9, 3, 2), (8, 3, 2), (4, 1, 2), (2, 1, 1), (1, 1, 1)])
def test_names_above_fill_their_rows(names: int, columns: int, rows: int) -> None:
    lines = tuple(Line("x" * 20 + str(number), "plain", number, (0.0,), ((1.0,),)) for number in range(names))
    sheet = draw_panels([Panel("", "", lines)] * columns, "", columns=columns, names_above=True)
    sheet.savefig(io.BytesIO(), format="svg")
    (legend,) = sheet.legends
    heights = {round(text.get_window_extent().y0) for text in legend.get_texts()}
    assert len(heights) == rows
    assert legend.get_window_extent().x1 <= sheet.bbox.x1


def test_names_below_are_over_no_line() -> None:
    panels = [Panel("", "radius", tuple(line(number) for number in range(count))) for count in (6, 5)]
    sheet = draw_panels(panels, "a caption", columns=2, names_below=True)
    sheet.savefig(io.BytesIO(), format="svg")
    for column, count in enumerate((6, 5)):
        legend = sheet.axes[2 + column].get_legend()
        assert legend is not None
        assert len(legend.get_texts()) == count
        above = sheet.axes[column].get_tightbbox()
        assert above is not None
        assert legend.get_window_extent().y1 <= above.y0, "under the name of the axis"
        assert legend.get_window_extent().y0 >= 0


def test_where_a_panel_is_cut_the_axis_says_so() -> None:
    falls = Line("a", "plain", 0, (0.0, 0.1, 0.2, 1.0), ((9.0,), (1.0,), (0.0,), (0.0,)))
    for cropped, label in ((True, "radius; 0 beyond"), (False, "radius")):
        (axes,) = draw_panels([Panel("", "radius", (falls,), cropped=cropped)], "", columns=1).axes
        assert axes.get_xlabel() == label


def test_two_refuted_methods_have_two_reds_in_all_panels() -> None:
    """Planted: the second panel names them in the other order, and one has a second line."""
    first, second = line(1, kind="paper"), line(4, kind="paper")
    again = Line("again", "paper", 1, PLACES, second.samples, marked=False)
    panels = [Panel("", "", (line(0), first, second)), Panel("", "", (second, first, again))]
    sheet = draw_panels(panels, "", columns=2, names_above=True)
    drawn = [{str(one.get_label()): one.get_color() for one in axes.get_lines()} for axes in sheet.axes]
    assert drawn[0] == {"plain 0": PALETTE[0], "paper 1": BROKEN, "paper 4": BROKEN_TOO}
    assert drawn[1] == {"paper 1": BROKEN, "paper 4": BROKEN_TOO, "again": BROKEN}
