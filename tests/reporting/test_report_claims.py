"""Radii that are no promise are called claims wherever they are shown; norms, bounds, laws and places are named."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_attacks import add_attacks, add_audit, attacked_certificate, crossing
from report_page import check_page
from report_runs import (
    LABELS,
    certificate_settings,
    image_data,
    make_certificates,
    privacy_promise,
    robustness_promise,
    run_record,
    write_run,
)

from twinproof.guarantee import Status
from twinproof.reporting import write_comparison
from twinproof.reporting.facts import load_facts
from twinproof.reporting.write import write_report

IMAGES = image_data(LABELS)
LAYER: dict[str, Any] = {
    "statistic": "scores",
    "confidence": "empirical-bernstein",
    "norm": "linf",
    "law": "laplace",
    "place": "first-layer",
    "dimension": 500,
}


def claimed_run(root: Path, status: Status = Status.REFUTED, config: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A run whose promise of robustness has that status, with certificates."""
    promises = {"privacy": privacy_promise().as_dict(), "robustness": {"l2": robustness_promise(status).as_dict()}}
    record = run_record(guarantees=promises, config={"recipe": "x", **(config or {})})
    return write_run(root, record, make_certificates(LABELS), certificate_settings(inputs=len(LABELS), **settings))


def pages(root: Path) -> tuple[str, dict[str, Any]]:
    files = write_report(root, dataset=IMAGES)
    page = files.html.read_text(encoding="utf-8")
    check_page(page)
    return page, json.loads(files.json.read_text())


def text_of(page: str) -> str:
    """What a reader sees, without the style sheet."""
    return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)))


PROMISES = (
    "certified accuracy",
    "average certified",
    "certified at",
    "certified l2 radius",
    "radius held by",
    "cannot be changed by",
    "wrong with probability at most alpha",
)


@pytest.mark.parametrize(("status", "claim"), [(Status.REFUTED, "claimed, refuted"), (Status.PUBLISHED, "claimed, not proven")])
def test_radii_without_a_proof_are_claims_everywhere(tmp_path: Path, status: Status, claim: str) -> None:
    page, twin = pages(claimed_run(tmp_path / "run", status, bound="published"))
    shown, verdict = text_of(page).lower(), claim.removeprefix("claimed")
    for words in (f"claimed accuracy{verdict}", f"claimed l2 radius{verdict}", "claimed at l2 radius", f"({claim})"):
        assert words in shown, words
    shown = shown.replace(robustness_promise().promise.lower(), "")  # under "claim as recorded"
    kept = [words for words in PROMISES if words in shown]
    assert kept == ([] if status is Status.REFUTED else ["radius held by"])
    if status is Status.PUBLISHED:
        assert "radius held by 50 % (claimed, not proven)" in shown
    assert twin["certification"]["claim"] == claim


def test_proven_radii_are_no_claims(tmp_path: Path) -> None:
    """The same search the other way round: what it misses above would be missed here too."""
    page, twin = pages(claimed_run(tmp_path / "run", Status.PROVEN))
    shown = text_of(page).lower()
    assert [words for words in PROMISES if words not in shown] == []
    assert "claimed" not in shown
    assert twin["certification"]["claim"] == ""


def test_a_refuted_promise_is_said_in_plain_words(tmp_path: Path) -> None:
    shown = text_of(pages(claimed_run(tmp_path / "run", bound="published"))[0])
    assert "has been shown to be false. Treat the model as not robust. Radii on this page are what was claimed" in shown


def test_the_card_and_the_twin_name_norm_bound_law_and_place(tmp_path: Path) -> None:
    root = claimed_run(tmp_path / "run", Status.PROVEN, runner_up="union", **LAYER)
    page, twin = pages(root)
    shown = text_of(page)
    for words in (
        "Laplace, after the first layer",
        "tight (Neyman and Pearson); scores, empirical-bernstein, union",
        "certified linf radius",
        "Only changes measured in the linf norm",
        "averages its scores over noisy copies",
    ):
        assert words in shown, words
    assert "l2" not in re.sub(r"Cohen.*?grid|within the certified l2 radius|certificates/l2/", "", shown), (
        "nothing is left of the usual norm"
    )
    wanted = {**LAYER, "bound": "tight", "runner_up": "union"}
    del wanted["dimension"]
    assert {name: twin["certification"][name] for name in wanted} == wanted


def test_attacks_on_radii_that_are_known_to_be_false_are_no_surprise(tmp_path: Path) -> None:
    root = claimed_run(tmp_path / "run", bound="published")
    add_attacks(root, IMAGES, make_certificates(LABELS), crossing, bound="published")
    add_audit(root, [attacked_certificate(index, 0.5, inside=True) for index in range(20)])
    page, twin = pages(root)
    shown = text_of(page)
    for words in (
        "REFUTED, as expected: attacks contradict the radii of this run",
        "As expected: an attack crosses the claimed line",
        "Refuted, as expected: the bound of these radii is known to be false",
        "share claimed, refuted",
        "claimed there",
    ):
        assert words in shown, words
    assert "DEFECT" not in shown
    assert "no attack may get below it" not in shown
    assert twin["attacks"]["bound"] == "published"


def test_the_same_attacks_on_a_proven_bound_are_a_defect(tmp_path: Path) -> None:
    root = claimed_run(tmp_path / "run", Status.PROVEN)
    add_attacks(root, IMAGES, make_certificates(LABELS), crossing)
    shown = text_of(pages(root)[0])
    assert "DEFECT: an attack contradicts" in shown
    assert "expected" not in shown


def test_attacks_in_another_norm_say_what_a_radius_must_cover(tmp_path: Path) -> None:
    root = claimed_run(tmp_path / "run", Status.PROVEN, config={"noise_layer": {"place": "first-layer"}}, norm="l1")
    add_attacks(root, IMAGES, make_certificates(LABELS), norm="linf", certificate_norm="l1")
    facts = load_facts(root)
    assert facts.attacks is not None
    assert [one["reach"] for one in facts.attacks.results["sizes"]] == [16.0, 32.0, 64.0], "64 coordinates"
    shown = text_of(pages(root)[0])
    assert "Radii are in l1: an attack of linf size 1 can be 64.000 long there" in shown
    assert "This network has a noise layer" in shown
    same = claimed_run(tmp_path / "same", Status.PROVEN)
    add_attacks(same, IMAGES, make_certificates(LABELS))
    shown = text_of(pages(same)[0])
    assert "long there" not in shown
    assert "noise layer" not in shown


def test_runs_are_compared_within_one_norm_only(tmp_path: Path) -> None:
    roots = [
        claimed_run(tmp_path / "sound", Status.PROVEN),
        claimed_run(tmp_path / "layered", Status.PROVEN, **LAYER),
        claimed_run(tmp_path / "printed", bound="published"),
        write_run(tmp_path / "bare"),
    ]
    files = write_comparison(roots, tmp_path / "out.html")
    page = files.html.read_text(encoding="utf-8")
    parts = [f"{name}-{norm}" for norm in ("l2", "linf") for name in ("numbers", "certified", "table")]
    assert check_page(page).sections == ["guarantees", *parts]
    assert "are in different norms" in page
    sections = dict(re.findall(r'<section id="([^"]+)">(.*?)</section>', page, flags=re.DOTALL))
    for name, section in sections.items():
        shown = text_of(section)
        if name.endswith("-linf"):
            assert "layered" in shown
            assert "sound" not in shown
        if name.endswith("-l2"):
            assert "printed (claimed, refuted)" in shown
            assert "layered" not in shown
    assert "linf, tight bound" in text_of(sections["guarantees"])
    assert "Laplace, after the first layer" in text_of(sections["guarantees"])
    assert "Certified and claimed accuracy in l2" in text_of(sections["certified-l2"])
    assert "Not certified yet: bare." in text_of(sections["certified-l2"])
    differences = json.loads(files.json.read_text())["differences"]
    assert differences[:4] == ["the norm of the radii", "the bound", "the law of the noise", "the place of the noise"]


def test_runs_of_one_norm_and_one_kind_are_named_once(tmp_path: Path) -> None:
    roots = [claimed_run(tmp_path / name, bound="published", norm="linf") for name in ("one", "two")]
    page = write_comparison(roots, tmp_path / "out.html").html.read_text(encoding="utf-8")
    assert check_page(page).sections == ["guarantees", "numbers", "certified", "table"]
    shown = text_of(page)
    assert "Claimed accuracy, refuted" in shown
    assert "claimed linf radius, refuted" in shown
    assert "different norms" not in shown
