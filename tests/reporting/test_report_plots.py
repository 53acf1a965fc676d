"""Plots live inside a page: no outside reference, no fixed colour, no name twice, and curves that never show too much."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_runs import IMAGES, add_audit, attacked_certificate, attacked_run, certificate_settings, robustness_promise

from twinproof.attacks.search import METHODS
from twinproof.evaluation.accuracy import binomial_interval
from twinproof.evaluation.protocols import Protocol
from twinproof.guarantee import Status
from twinproof.reporting.attacks import AttackFacts
from twinproof.reporting.evidence import Certification
from twinproof.reporting.facts import Progress, RunFacts, load_facts
from twinproof.reporting.plots import (
    WORST,
    attack_curves,
    attack_plot,
    comparison_plot,
    curve_plot,
    histogram_plot,
    mark_of,
    progress_plot,
    ratio_plot,
)
from twinproof.reporting.words import RadiusWords
from twinproof.runs.records import ABSTAIN, Certificate

PROGRESS = [Progress(10, 0.5, 1.0), Progress(20, 0.75, 1.5), Progress(30, None, None)]


def certification(status: Status = Status.PROVEN, norm: str = "l2", *, silent: bool = False) -> Certification:
    prediction = ABSTAIN if silent else 0
    certificates = tuple(Certificate(index, 0, prediction, 900, 0, 0.0 if silent else 0.05 * index) for index in range(20))
    return Certification("l2", robustness_promise(status), certificate_settings(norm=norm), certificates, None)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    root: Path = attacked_run(tmp_path_factory.mktemp("plot") / "run", IMAGES)
    add_audit(root, [attacked_certificate(0, 0.5, inside=True), attacked_certificate(1, 1.5), attacked_certificate(2, None)])
    return load_facts(root)


@pytest.fixture(scope="module")
def plots(facts: RunFacts) -> dict[str, str]:
    words = RadiusWords("l2")
    return {
        "curve": curve_plot("one", certification(), binomial_interval(9, 10)),
        "claimed curve": curve_plot("two", certification(Status.REFUTED, "linf"), None),
        "histogram": histogram_plot("three", certification()),
        "histogram of nothing but abstentions": histogram_plot("four", certification(silent=True)),
        "progress": progress_plot("five", PROGRESS),
        "progress without privacy": progress_plot("six", [Progress(10, 0.5, None)]),
        "comparison": comparison_plot("seven", [certification().curve()] * 8, "l1 radius"),
        "attacks": attack_plot("eight", facts.attacks[0], words),
        "audit": ratio_plot("nine", facts.audits[0], words),
    }


def test_plots_are_self_contained_and_no_name_is_used_twice(plots: dict[str, str]) -> None:
    for plot in plots.values():
        assert "http" not in plot
        assert "#0102" not in plot, "every stand-in was replaced by a variable of the style sheet"
        assert "<style" not in plot
        assert "var(--" in plot
        assert plot.count("<svg") == 2
        ElementTree.fromstring(f"<div>{plot}</div>")
    page = "".join(plots.values())
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    referred = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert referred <= set(names)
    assert referred, "markers and hatches are referred to, or the check above says nothing"


def test_the_same_plot_is_the_same_bytes(facts: RunFacts, plots: dict[str, str]) -> None:
    assert curve_plot("one", certification(), binomial_interval(9, 10)) == plots["curve"]
    assert attack_plot("eight", facts.attacks[0], RadiusWords("l2")) == plots["attacks"]


def test_axes_name_the_norm_and_a_claim_is_not_called_certified(plots: dict[str, str]) -> None:
    assert "certified l2 radius</text>" in plots["curve"]
    assert "certified l2 radius</text>" in plots["histogram"]
    assert "l1 radius</text>" in plots["comparison"]
    assert "claimed linf radius, refuted</text>" in plots["claimed curve"]
    assert "certified" not in plots["claimed curve"].lower()


def test_the_privacy_panel_only_where_something_was_spent(plots: dict[str, str]) -> None:
    assert "epsilon spent</text>" in plots["progress"]
    assert "epsilon spent</text>" not in plots["progress without privacy"]


def test_text_in_plots_is_escaped() -> None:
    plot = comparison_plot("one", [certification().curve()], "<b>$x$ radius")
    assert "&lt;b&gt;$x$" in plot
    assert "<b>" not in plot


def test_a_curve_for_each_attack_and_protocol_and_the_worst_case(facts: RunFacts) -> None:
    attacks: AttackFacts = facts.attacks[0]
    curves = {curve.name: curve for curve in attack_curves(attacks)}
    worst = "worst case for each input, adaptive"
    assert list(curves) == ["fgsm, papers'", "pgd, papers'", "fgsm, adaptive", "pgd, adaptive", worst]
    for place, result in enumerate(attacks.recorded["sizes"]):
        both = [result["adaptive"]["attacks"][f"pgd on {target}"]["smoothed"]["value"] for target in ("network", "smoothed")]
        assert curves["pgd, adaptive"].shares["smoothed"][place].value == min(both)
        papers = result["paper"]["attacks"]["fgsm"]["network"]
        assert curves["fgsm, papers'"].shares["network"][place].as_dict() == papers
        lowest = curves[worst].shares["smoothed"][place]
        assert lowest.as_dict() == result["adaptive"]["worst"]["smoothed"]
        assert all(lowest.value <= curves[name].shares["smoothed"][place].value for name in ("fgsm, adaptive", "pgd, adaptive"))
        certified = attacks.results.sizes[place].certified.value
        assert all(certified <= curve.shares["smoothed"][place].value for curve in curves.values())


def test_marks_differ_without_their_colours() -> None:
    marks = [mark_of(protocol, attack) for protocol in Protocol for attack in METHODS]
    looks = {(mark.marker, mark.dashes, mark.filled) for mark in [*marks, WORST]}
    assert len(looks) == len(marks) + 1
    assert len({mark.colour for mark in [*marks, WORST]}) == len(METHODS) + 1
    assert mark_of(Protocol.PAPER, "another") == mark_of(Protocol.PAPER, "pgd"), "any method can be drawn"
