"""The page as a whole: well formed, self-contained, escaped, readable without its parts, and with several certifications."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
from report_runs import (
    HOSTILE,
    IMAGES,
    LABELS,
    add_attacks,
    add_audit,
    add_certificates,
    attacked_certificate,
    attacked_run,
    certificate_settings,
    certified_run,
    check_page,
    crossing,
    feature_data,
    image_data,
    make_certificates,
    make_metrics,
    privacy_promise,
    report,
    robustness_promise,
    run_record,
    section,
    text_of,
    write_run,
)
from report_runs import each_plot_once as each_plot_once

from twinproof.data.record import Dataset, Split
from twinproof.errors import RunError
from twinproof.guarantee import Status
from twinproof.reporting import facts, write_report
from twinproof.reporting.page import render
from twinproof.runs.records import Certificate

CHECKED = {"ok": True, "problems": [], "checks": ["chain", {"name": "radii", "detail": "60 of 60"}]}
ORDER = ["guarantee", "numbers", "certified", "radii", "progress", "examples", "check"]


def full_run(root: Path, **changes: Any) -> Path:
    return write_run(root / "my run", run_record(**changes), make_certificates(LABELS), metrics=make_metrics())


def test_the_page_is_self_contained_and_in_order(tmp_path: Path) -> None:
    root = full_run(tmp_path)
    files = write_report(str(root), dataset=IMAGES, verification={**CHECKED, "run": str(root)})
    assert (files.html, files.json) == (root / "report.html", root / "report.json")
    page = files.html.read_text(encoding="utf-8")
    balance = check_page(page)
    assert balance.sections == ORDER
    assert sum(load.startswith("data:") for load in balance.loads) >= 8
    assert "twinproof verify &#39;my run&#39;" in page
    assert str(tmp_path) not in page + files.json.read_text(encoding="utf-8"), "a released file names no folder of its owner"
    assert "Verified: 2 checks passed." in page
    assert "Not checked" not in page, "the verification named nothing"
    assert not list(root.glob("*.part"))
    before = files.html.read_bytes()
    assert write_report(root, dataset=IMAGES, verification=CHECKED).html.read_bytes() == before, "the same run, the same bytes"


@pytest.mark.parametrize(
    "planted", ["<div>", "<script>x</script>", '<img src="https://x.org/a.png"/>', '<p onclick="x">a</p>', "<p>http://x</p>"]
)
def test_the_page_check_can_fail(planted: str) -> None:
    with pytest.raises(AssertionError):
        check_page(f"<html><body>{planted}</body></html>")


def test_what_was_not_checked_stands_beside_what_was(tmp_path: Path) -> None:
    page, copy = report(full_run(tmp_path), verification={**CHECKED, "not_checked": ["votes of certificates", "the noise"]})
    assert page.count("Not checked: votes of certificates; the noise.") == 2
    assert copy["verification"]["not_checked"] == ["votes of certificates", "the noise"]


def test_a_failed_verification_is_shown_in_full(tmp_path: Path) -> None:
    what = "a line does not continue the chain"
    problem = {"file": "ledger.jsonl", "what": what, "got": "line 3", "wanted": "the hash of line 2"}
    check = {"name": "ledger chain", "passed": False, "detail": "400 lines"}
    page, _ = report(full_run(tmp_path), verification={"ok": False, "problems": [problem], "checks": [check]})
    assert "Verification FAILED with 1 problem: do not rely on this run." in page
    assert "ledger.jsonl: a line does not continue the chain (got line 3, wanted the hash of line 2)" in page
    assert "✗ ledger chain: 400 lines" in page


@pytest.mark.parametrize("data", [IMAGES, feature_data(LABELS)], ids=["images", "features"])
def test_everything_from_a_run_is_escaped(tmp_path: Path, data: Dataset) -> None:
    """Every text of every file is hostile; a template that marks one of them as safe is caught."""
    record = run_record(
        recipe=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE}, created=HOSTILE, files={HOSTILE: {"sha256": HOSTILE}}
    )
    record["data"] |= {"name": HOSTILE, "classes": [HOSTILE] * 4}
    for promise in (record["guarantees"]["privacy"], record["guarantees"]["robustness"]["l2"]):
        promise |= {"promise": HOSTILE, "theorem": HOSTILE, "assumptions": [HOSTILE], "reason": HOSTILE}
    hostile = dict.fromkeys(("device", "created", "law", "place", "form", "arithmetic"), HOSTILE)
    certificates = make_certificates(LABELS)
    root = write_run(
        tmp_path / "<b>run", record, certificates, certificate_settings(inputs=len(LABELS), **hostile), make_metrics()
    )
    add_attacks(root, data, certificates, crossing, device=HOSTILE, created=HOSTILE)
    attacks = json.loads((root / "attacks/l2/attacks.json").read_text())
    attacks["results"]["warnings"] = [HOSTILE]
    for size in attacks["results"]["sizes"]:
        size["paper"]["attacks"] = {f"{name}{HOSTILE}": one for name, one in size["paper"]["attacks"].items()}
    (root / "attacks/l2/attacks.json").write_text(json.dumps(attacks))
    flipped = [attacked_certificate(index, 0.5, inside=True) for index in range(12)]
    flipped = [replace(one, flip=one.flip and replace(one.flip, found_by=HOSTILE)) for one in flipped]
    add_audit(root, flipped, device=HOSTILE, norm=HOSTILE)
    page, _ = report(
        root, data, verification={"ok": False, "problems": [HOSTILE], "checks": [HOSTILE], "not_checked": [HOSTILE]}
    )
    assert "<b>" not in page
    assert page.count("&lt;script&gt;") > 60
    both = facts.load_facts(root)
    assert both.refuting


def test_a_misnamed_value_in_a_template_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="facts"):
        render("run.html.j2")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"record": run_record(robust=None)}, ("No test input has been certified yet", "kept no progress")),
        ({"metrics": make_metrics()}, ("certificates of this run are missing", "At the last report 3.000")),
        ({"certificates": make_certificates(LABELS)}, ("kept no progress", "data set was not at hand")),
        ({"certificates": make_certificates(LABELS)[:20], "settings": certificate_settings()}, ("not finished: 20 of 360",)),
        ({"record": run_record(state="training")}, ("training is not complete",)),
        ({"record": {"format": 1, "files": {}}}, ("unknown recipe", "No privacy is promised")),
        (
            {"record": {"format": 1, "files": {}, "privacy": None, "accuracy": None, "guarantees": None, "data": None}},
            ("No robustness is promised",),
        ),
        ({"metrics": [{"step": 5, "epsilon": None, "test_accuracy": None}]}, ("kept no progress",)),
        ({"certificates": [Certificate(0, 1, 1, 600, 1, 1e-6), Certificate(1, 2, 1, 600, 1, 0.0)]}, ("Certified accuracy",)),
    ],
)
def test_missing_parts_give_a_sensible_page(tmp_path: Path, parts: dict[str, Any], words: tuple[str, ...]) -> None:
    files = write_report(write_run(tmp_path / "run", **parts))
    page = files.html.read_text(encoding="utf-8")
    assert check_page(page).sections == ORDER
    for word in words:
        assert word in text_of(page)
    json.loads(files.json.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("older", [{}, {"finished": "2025-01-01T10:01:30Z", "seconds": 90.25}], ids=["now", "earlier"])
def test_the_report_does_not_say_how_long_training_took(tmp_path: Path, older: dict[str, Any]) -> None:
    """It would tell how many records the steps drew; a run of an earlier version still has it in run.json."""
    page, copy = report(write_run(tmp_path / "run", run_record(**older)))
    assert "2025-01-01 10:00" in page
    for leak in ("10:01", "90.2", "1.5 min"):
        assert leak not in page
        assert leak not in json.dumps(copy)


def test_a_run_without_privacy_shows_no_epsilon(tmp_path: Path) -> None:
    page, _ = report(write_run(tmp_path / "run", run_record(Status.NONE, privacy=None), metrics=make_metrics(private=False)))
    assert "no privacy is promised" in page
    assert "epsilon spent" not in page


def test_a_broken_run_writes_nothing(tmp_path: Path) -> None:
    root = full_run(tmp_path)
    run_json = (root / "run.json").read_text()
    (root / "run.json").write_text(run_json.replace('"divisor": 90', '"divisor": Infinity'))
    with pytest.raises(RunError, match="Infinity is not a JSON number"):
        write_report(root)
    (root / "run.json").write_text(run_json)
    (root / "certificates/l2/certificates.csv").write_text("index,label\n1,x\n")
    with pytest.raises(RunError, match=r"certificates.csv is broken"):
        write_report(root)
    assert not list(root.glob("report.*"))
    with pytest.raises(RunError, match="not a run directory"):
        write_report(tmp_path)


def test_a_radius_that_no_votes_give_does_not_hide_the_report(tmp_path: Path) -> None:
    """A run that lies must be shown with its failed verification; only the numbers that make no sense are left out."""
    certificates = [Certificate(index, label, label, 9000, label, 9.5) for index, label in enumerate(LABELS)]
    failed = {"ok": False, "problems": ["a radius is too large"], "checks": []}
    page, copy = report(write_run(tmp_path / "run", run_record(), certificates), verification=failed)
    assert check_page(page).sections == ORDER
    assert "The certificates cannot be summarised" in page
    assert "Average c" not in page
    assert "Verification FAILED" in page
    assert copy["certifications"][0]["certified"] is None


def test_feature_data_give_a_table_in_place_of_pictures(tmp_path: Path) -> None:
    page, _ = report(full_run(tmp_path), feature_data(LABELS))
    assert "<img" not in page
    assert "The first 10 of 12 features." in page
    assert "&lt;b&gt;feature 3" in page


def test_another_data_set_is_not_shown(tmp_path: Path) -> None:
    page, _ = report(full_run(tmp_path), image_data(LABELS[::-1]))
    assert "another label than its certificate" in page
    assert "<img" not in page


def test_training_inputs_never_reach_the_report(tmp_path: Path) -> None:
    """Two data sets that differ in every training record give the same page and the same JSON copy."""
    other = Split(255 - IMAGES.train.inputs, IMAGES.train.labels[::-1].copy())
    root = full_run(tmp_path)
    assert report(root, replace(IMAGES, train=other)) == report(root, IMAGES)


@pytest.mark.parametrize("known", [IMAGES, feature_data(LABELS)], ids=["images", "features"])
def test_own_records_are_shown_only_on_request(tmp_path: Path, known: Dataset) -> None:
    """Without the request a report is the same for any test inputs; with it, it is that of a known set."""
    root = attacked_run(tmp_path / "run", known)
    own = replace(known, public=False)
    other = replace(own, test=Split(own.test.inputs ^ 1, own.test.labels))
    page, copy = hidden = report(root, own)
    assert page.count("twinproof report RUN --examples") == 2, "test inputs and attacked inputs"
    assert (copy["certifications"][0]["examples"], copy["attacks"][0]["examples"]) == ([], [])
    assert report(root, other) == hidden
    shown = report(root, own, examples=True)
    assert shown == report(root, known)
    assert shown != report(root, other, examples=True), "the comparison can fail"
    assert shown[1]["certifications"][0]["examples"]
    assert shown[1]["attacks"][0]["examples"]


PROMISES = (
    *("certified accuracy", "average certified", "certified at", "certified l2 radius", "radius held by"),
    *("cannot be changed by", "wrong with probability at most alpha"),
)


@pytest.mark.parametrize(
    ("status", "claim"),
    [(Status.REFUTED, "claimed, refuted"), (Status.PUBLISHED, "claimed, not proven"), (Status.PROVEN, "")],
)
def test_radii_without_a_proof_are_claims_everywhere(tmp_path: Path, status: Status, claim: str) -> None:
    """The same search for proven radii the other way round: what it misses in one case would be missed in the other."""
    page, copy = report(certified_run(tmp_path / "run", status, bound="published" if claim else "tight"))
    shown = text_of(page).lower().replace(robustness_promise().promise.lower(), "")  # under "claim as recorded"
    kept = [words for words in PROMISES if words in shown]
    assert copy["certifications"][0]["claim"] == claim
    if not claim:
        assert kept == [words for words in PROMISES if words != "certified l2 radius" or words in shown]
        assert "claimed" not in shown
        return
    verdict = claim.removeprefix("claimed")
    for words in (f"claimed accuracy{verdict}", f"claimed l2 radius{verdict}", "claimed at l2 radius", f"({claim})"):
        assert words in shown, words
    assert kept == ([] if status is Status.REFUTED else ["radius held by"])
    if status is Status.PUBLISHED:
        assert "radius held by 50 % (claimed, not proven)" in shown
    else:
        assert "shown to be false. treat the model as not robust. radii on this page are what was claimed" in shown


def test_shared_noise_is_said_wherever_certificates_speak(tmp_path: Path) -> None:
    shared, copy = report(certified_run(tmp_path / "shared", shared_noise=True, form="exact first layer", arithmetic="tf32"))
    own, _ = report(certified_run(tmp_path / "own"))
    for words in ("shared by all inputs", "certificates may fail together", "the intervals hold given this noise"):
        assert words in text_of(shared)
        assert words not in text_of(own)
    assert "exact first layer; tf32" in shared
    made = copy["certifications"][0]["settings"]
    assert (made["shared_noise"], made["form"], made["arithmetic"]) == (True, "exact first layer", "tf32")


def test_several_certifications_and_attacks_are_shown_by_name(tmp_path: Path) -> None:
    """One of them is contradicted, and the other keeps its promise."""
    root = attacked_run(tmp_path / "run", IMAGES)
    add_certificates(root, make_certificates(LABELS), certificate_settings(inputs=len(LABELS), norm="linf"))
    broken = {"norm": "linf", "certificate_norm": "linf", "sizes": (0.1,)}
    add_attacks(root, IMAGES, make_certificates(LABELS), crossing, **broken)
    for name in ("l2", "linf"):
        add_audit(root, [attacked_certificate(0, 1.5)], of=name)
    page, copy = report(root)
    both = [f"{name}{end}" for end in ("", "-2") for name in ("certified", "radii")]
    parts = [f"{name}{end}" for name in ("attacks", "audit") for end in ("", "-2")]
    assert check_page(page).sections == ["guarantee", "numbers", *both, *parts, "progress", "examples", "examples-2", "check"]
    for name, text in {
        "certified-2": "Claimed accuracy, contradicted: linf",
        "attacks-2": "Under attack: linf",
        "audit": "Attacks on certificates: l2",
        "examples-2": "Examples from the test set: linf",
        "numbers": "Average certified l2 radius (l2)",
        "guarantee": "Robust: linf",
    }.items():
        assert text in text_of(section(page, name))
    assert {name: one["shown"] for name, one in copy["guarantees"]["robustness"].items()} == {
        "l2": "proven",
        "linf": "contradicted",
    }
    for kind in ("certifications", "attacks", "audits"):
        assert [one["name"] for one in copy[kind]][:1] == ["l2"]
        assert len(copy[kind]) == 2


def test_privacy_promise_in_words_and_numbers(tmp_path: Path) -> None:
    page, copy = report(full_run(tmp_path))
    assert copy["guarantees"]["privacy"]["sentence"] in text_of(page).replace("e\u2060-\u2060", "e-")
    assert copy["guarantees"]["privacy"]["promise"] == privacy_promise().promise
