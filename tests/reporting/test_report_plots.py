"""Plots live inside a page: no outside reference, no fixed colour, no name twice, and curves that never show too much."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from twinproof.evaluation.accuracy import binomial_interval
from twinproof.evaluation.certified import certified_curve
from twinproof.reporting.facts import Progress
from twinproof.reporting.plots import RadiusCounts, comparison_plot, curve_plot, histogram_plot, progress_plot
from twinproof.reporting.radius_words import REFUTED_CLAIM, RadiusWords
from twinproof.runs.certificates import Certificate

CERTIFICATES = [Certificate(index, 0, 0, 900, 0, 0.05 * index) for index in range(20)]
CURVE = certified_curve(CERTIFICATES, [0.01 * index for index in range(96)])
CERTIFIED = RadiusWords("l2")
COUNTS = RadiusCounts((0.0, 0.5, 1.0), (3, 4), (1, 0), 2)
PROGRESS = [Progress(10, 0.5, 1.0), Progress(20, 0.75, 1.5), Progress(30, None, None)]

PLOTS = {
    "curve": curve_plot("one", CURVE, binomial_interval(9, 10), CERTIFIED),
    "curve without reference": curve_plot("two", CURVE, None, RadiusWords("linf", REFUTED_CLAIM)),
    "histogram": histogram_plot("three", COUNTS, CERTIFIED),
    "histogram of nothing but abstentions": histogram_plot("four", RadiusCounts((0.0, 0.5, 1.0), (0, 0), (0, 0), 7), CERTIFIED),
    "progress": progress_plot("five", PROGRESS),
    "progress without privacy": progress_plot("six", [Progress(10, 0.5, None)]),
    "comparison": comparison_plot("seven", [CURVE] * 8, "l1 radius"),
}


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_self_contained(name: str) -> None:
    plot = PLOTS[name]
    assert "http" not in plot
    assert "#0102" not in plot  # every stand-in was replaced by a variable of the style sheet
    assert "<style" not in plot
    assert "var(--" in plot
    assert plot.count("<svg") == 2
    ElementTree.fromstring(f"<div>{plot}</div>")


def test_no_name_is_used_twice_in_a_page() -> None:
    page = "".join(PLOTS.values())
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    referred = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert referred <= set(names)
    assert referred  # markers and hatches are referred to, or the check above says nothing


def test_the_same_plot_is_the_same_bytes() -> None:
    assert curve_plot("one", CURVE, None, CERTIFIED) == curve_plot("one", CURVE, None, CERTIFIED)


def test_axes_name_the_norm_and_a_claim_is_not_called_certified() -> None:
    assert "certified l2 radius</text>" in PLOTS["curve"]
    assert "certified l2 radius</text>" in PLOTS["histogram"]
    assert "l1 radius</text>" in PLOTS["comparison"]
    claimed = PLOTS["curve without reference"]
    assert "claimed linf radius, refuted</text>" in claimed
    assert "certified" not in claimed.lower()


def test_privacy_panel_only_where_something_was_spent() -> None:
    assert "epsilon spent</text>" in PLOTS["progress"]
    assert "epsilon spent</text>" not in PLOTS["progress without privacy"]
