"""Curves under attack: what they go through, that they live inside a page, and that black and white is enough."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from report_attacks import attacked_run
from report_runs import LABELS, image_data

from twinproof.attacks.search import METHODS
from twinproof.evaluation.protocols import Protocol
from twinproof.reporting.attack_facts import AttackFacts
from twinproof.reporting.attack_marks import WORST, legend_entry, mark_of
from twinproof.reporting.attack_plot import attack_curves, attack_plot
from twinproof.reporting.facts import load_facts
from twinproof.reporting.radius_words import RadiusWords

IMAGES = image_data(LABELS)


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> AttackFacts:
    facts = load_facts(attacked_run(tmp_path_factory.mktemp("plot") / "run", IMAGES))
    assert facts.attacks is not None
    return facts.attacks


def test_a_curve_for_each_attack_and_protocol_and_the_worst_case(attacks: AttackFacts) -> None:
    curves = {curve.name: curve for curve in attack_curves(attacks)}
    assert list(curves) == [
        "fgsm, papers'",
        "pgd, papers'",
        "fgsm, adaptive",
        "pgd, adaptive",
        "worst case for each input, adaptive",
    ]
    for place, result in enumerate(attacks.results["sizes"]):
        ours = [result["adaptive"]["attacks"][f"pgd on {target}"]["smoothed"]["value"] for target in ("network", "smoothed")]
        assert curves["pgd, adaptive"].shares["smoothed"][place].value == min(ours)
        papers = result["paper"]["attacks"]["fgsm"]["network"]
        assert curves["fgsm, papers'"].shares["network"][place].as_dict() == papers
        worst = curves["worst case for each input, adaptive"].shares["smoothed"][place]
        assert worst.as_dict() == result["adaptive"]["worst"]["smoothed"]
        assert all(worst.value <= curves[name].shares["smoothed"][place].value for name in ("fgsm, adaptive", "pgd, adaptive"))


def test_the_certified_line_lies_under_every_curve(attacks: AttackFacts) -> None:
    for place, one in enumerate(attacks.sizes):
        assert all(one.certified.value <= curve.shares["smoothed"][place].value for curve in attack_curves(attacks))


def test_the_plot_is_self_contained(attacks: AttackFacts) -> None:
    drawn = attack_plot("attacks", attacks, RadiusWords("l2"))
    assert "http" not in drawn
    assert "#0102" not in drawn
    assert drawn.count("<svg") == 2
    ElementTree.fromstring(f"<div>{drawn}</div>")
    names = re.findall(r'\bid="([^"]+)"', drawn)
    assert len(names) == len(set(names))
    assert set(re.findall(r'href="#([^"]+)"', drawn)) <= set(names)
    assert drawn == attack_plot("attacks", attacks, RadiusWords("l2")), "the same plot is the same bytes"


def test_marks_differ_without_their_colours() -> None:
    marks = [mark_of(protocol, attack) for protocol in Protocol for attack in METHODS]
    looks = {(mark.marker, mark.dashes, mark.filled) for mark in [*marks, WORST]}
    assert len(looks) == len(marks) + 1
    assert len({mark.colour for mark in [*marks, WORST]}) == len(METHODS) + 1


def test_a_method_that_nobody_foresaw_can_be_drawn() -> None:
    assert mark_of(Protocol.PAPER, "another") == mark_of(Protocol.PAPER, "pgd")


def test_legends_are_escaped_and_closed() -> None:
    entry = legend_entry(mark_of(Protocol.PAPER, "fgsm"), "<b>")
    assert "&lt;b&gt;" in entry
    ElementTree.fromstring(entry)
