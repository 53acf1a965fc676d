"""The report as a whole: well formed, self-contained, escaped, in agreement with its twin, and whole without its parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_page import check_page
from report_runs import (
    LABELS,
    certificate_settings,
    feature_data,
    image_data,
    make_certificates,
    make_metrics,
    privacy_promise,
    run_record,
    write_run,
)

from twinproof.certification.record import find_certification
from twinproof.data.record import Split
from twinproof.errors import RunError
from twinproof.evaluation.certified import certified_accuracy, radius_at_accuracy, summarize
from twinproof.guarantee import Status
from twinproof.reporting import write_report
from twinproof.runs.certificates import Certificate

CHECKED = {"ok": True, "problems": [], "checks": ["chain", {"name": "radii", "detail": "60 of 60"}]}
ORDER = ("guarantee", "numbers", "certified", "radii", "progress", "examples", "check")
HOSTILE = "<script>alert(1)</script>\"'&"


def full_run(root: Path, **changes: Any) -> Path:
    return write_run(root / "my run", run_record(**changes), make_certificates(LABELS), metrics=make_metrics())


def test_the_page_is_well_formed_self_contained_and_in_order(tmp_path: Path) -> None:
    root = full_run(tmp_path)
    files = write_report(root, dataset=image_data(LABELS), verification={**CHECKED, "run": str(root)})
    assert (files.html, files.json) == (root / "report.html", root / "report.json")
    page = files.html.read_text(encoding="utf-8")
    balance = check_page(page)
    assert tuple(balance.sections) == ORDER
    assert sum(load.startswith("data:") for load in balance.loads) >= 8
    assert "twinproof verify &#x27;my run&#x27;" in page
    assert str(tmp_path) not in page + files.json.read_text(
        encoding="utf-8"
    )  # a released file does not name its owner's folders
    assert "Verified: 2 checks passed." in page
    assert "Not checked" not in page, "the verification named nothing"
    assert not list(root.glob("*.part"))


def test_what_was_not_checked_stands_beside_what_was(tmp_path: Path) -> None:
    files = write_report(full_run(tmp_path), verification={**CHECKED, "not_checked": ["votes of certificates", "the noise"]})
    assert files.html.read_text(encoding="utf-8").count("Not checked: votes of certificates; the noise.") == 2
    assert json.loads(files.json.read_text())["verification"]["not_checked"] == ["votes of certificates", "the noise"]


@pytest.mark.parametrize(
    "planted", ["<div>", "<script>x</script>", '<img src="https://x.org/a.png"/>', '<p onclick="x">a</p>', "<p>http://x</p>"]
)
def test_the_page_check_can_fail(planted: str) -> None:
    with pytest.raises(AssertionError):
        check_page(f"<html><body>{planted}</body></html>")


def test_a_failed_verification_is_told_in_full(tmp_path: Path) -> None:
    problem = {
        "file": "ledger.jsonl",
        "what": "a line does not continue the chain",
        "got": "line 3",
        "wanted": "the hash of line 2",
    }
    check = {"name": "ledger chain", "passed": False, "detail": "400 lines"}
    root = write_run(tmp_path / "run")
    page = write_report(root, verification={"ok": False, "problems": [problem], "checks": [check]}).html.read_text(
        encoding="utf-8"
    )
    assert "Verification FAILED with 1 problem: do not rely on this run." in page
    assert "ledger.jsonl: a line does not continue the chain (got line 3, wanted the hash of line 2)" in page
    assert "✗ ledger chain: 400 lines" in page


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    root = full_run(tmp_path)
    first = write_report(root, dataset=image_data(LABELS)).html.read_bytes()
    assert write_report(root, dataset=image_data(LABELS)).html.read_bytes() == first


def test_the_twin_agrees_with_evaluate(tmp_path: Path) -> None:
    root = full_run(tmp_path)
    record = json.loads(write_report(root, dataset=image_data(LABELS), verification=CHECKED).json.read_text())
    found = find_certification(root)
    assert found is not None
    certificates, settings = found.certificates, found.settings
    assert settings is not None
    assert record["certified"] == summarize(certificates, settings).as_dict()
    assert record["certified_inputs"] == len(LABELS)
    for point in record["curve"]:
        radius = point.pop("radius")
        assert point == certified_accuracy(certificates, radius).as_dict()
    assert record["radius_at_accuracy"]["0.5"] == radius_at_accuracy(certificates, 0.5)
    counts = record["histogram"]
    assert sum(counts["correct"]) + sum(counts["wrong"]) + counts["abstained"] == len(LABELS)
    assert record["verification"] == {**CHECKED, "not_checked": None}
    assert len(record["examples"]) >= 8


def test_numbers_are_rounded_in_the_safe_direction_on_the_page_and_in_the_twin(tmp_path: Path) -> None:
    """Epsilon 2.99990001 may become 3.000; a radius of 0.99996 may not become 1.000."""
    certificates = [Certificate(index, label, label, 9000, label, 0.99996) for index, label in enumerate(LABELS)]
    privacy = {**run_record()["privacy"], "epsilon": 2.99990001}
    root = write_run(tmp_path / "run", run_record(privacy=privacy), certificates, metrics=make_metrics())
    files = write_report(root, dataset=image_data(LABELS))
    page, record = files.html.read_text(encoding="utf-8"), json.loads(files.json.read_text())
    assert "≤ 3.000" in page
    assert "2.999 " not in page
    assert "radius 0.999" in page
    assert "1.000" not in page
    assert record["privacy"]["epsilon"] == 2.999901  # rounding to nearest would say 2.9999, less than was spent
    assert record["certified"]["acr"] <= 0.99996
    assert record["radius_at_accuracy"]["0.9"] <= 0.99996
    assert max(point["radius"] for point in record["curve"] if point["value"] > 0) <= 0.99996


def test_everything_a_user_controls_is_escaped(tmp_path: Path) -> None:
    record = run_record(
        recipe=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE}, created=HOSTILE, files={HOSTILE: {"sha256": HOSTILE}}
    )
    record["data"] = {**record["data"], "name": HOSTILE, "classes": [HOSTILE] * 4}
    promise = {
        **privacy_promise().as_dict(),
        "promise": HOSTILE,
        "theorem": HOSTILE,
        "assumptions": [HOSTILE],
        "reason": HOSTILE,
    }
    record["guarantees"]["privacy"] = promise
    settings = certificate_settings(device=HOSTILE, created=HOSTILE, inputs=len(LABELS))
    root = write_run(tmp_path / "<b>run", record, make_certificates(LABELS), settings, make_metrics())
    verification = {"ok": False, "problems": [HOSTILE], "checks": [HOSTILE]}
    for data in (image_data(LABELS), feature_data(LABELS)):
        page = write_report(root, dataset=data, verification=verification).html.read_text(encoding="utf-8")
        check_page(page)
        assert "<b>" not in page
        assert page.count("&lt;script&gt;") > 10


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, ("No test input has been certified yet", "kept no progress")),
        ({"metrics": make_metrics()}, ("No test input has been certified yet", "At the last report 3.000")),
        ({"certificates": make_certificates(LABELS)}, ("kept no progress", "data set was not at hand")),
        ({"certificates": []}, ("No test input has been certified yet",)),
        ({"certificates": make_certificates(LABELS)[:20], "settings": certificate_settings()}, ("not finished: 20 of 360",)),
        ({"record": run_record(state="training")}, ("training is not complete",)),
        ({"record": {"format": 1, "files": {}}}, ("unknown recipe", "No privacy is promised")),
        (
            {"record": {"format": 1, "files": {}, "privacy": None, "accuracy": None, "guarantees": None, "data": None}},
            ("No robustness is promised",),
        ),
        ({"metrics": [{"step": 5, "epsilon": None, "test_accuracy": None}]}, ("kept no progress",)),
    ],
)
def test_missing_parts_give_a_sensible_page(tmp_path: Path, parts: dict[str, Any], words: tuple[str, ...]) -> None:
    files = write_report(write_run(tmp_path / "run", **parts))
    page = files.html.read_text(encoding="utf-8")
    assert tuple(check_page(page).sections) == ORDER
    for word in words:
        assert word in page
    json.loads(files.json.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("older", [{}, {"finished": "2025-01-01T10:01:30Z", "seconds": 90.25}], ids=["now", "earlier"])
def test_the_report_does_not_say_how_long_training_took(tmp_path: Path, older: dict[str, Any]) -> None:
    """It would tell how many records the steps drew; a run of an earlier version still has it in run.json."""
    files = write_report(write_run(tmp_path / "run", run_record(**older)))
    page, twin = files.html.read_text(encoding="utf-8"), files.json.read_text()
    assert "2025-01-01 10:00" in page
    for told in ("10:01", "90.2", "1.5 min"):
        assert told not in page
        assert told not in twin


def test_a_run_without_privacy_shows_no_epsilon(tmp_path: Path) -> None:
    promises = {**run_record()["guarantees"], "privacy": privacy_promise(Status.NONE).as_dict()}
    root = write_run(tmp_path / "run", run_record(privacy=None, guarantees=promises), metrics=make_metrics(private=False))
    page = write_report(root).html.read_text(encoding="utf-8")
    assert "no privacy is promised" in page
    assert "epsilon spent" not in page


def test_infinity_in_a_record_is_refused(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", run_record())
    text = (root / "run.json").read_text().replace('"divisor": 90', '"divisor": Infinity')
    (root / "run.json").write_text(text)
    with pytest.raises(RunError, match="Infinity is not a JSON number"):
        write_report(root)


@pytest.mark.parametrize("radius", [0.0, 1e-6])
def test_tiny_radii_can_be_drawn(tmp_path: Path, radius: float) -> None:
    certificates = [Certificate(0, 1, 1, 600, 1, radius), Certificate(1, 2, 1, 600, 1, radius)]
    check_page(write_report(write_run(tmp_path / "run", certificates=certificates)).html.read_text(encoding="utf-8"))


def test_feature_data_gives_a_table_in_place_of_pictures(tmp_path: Path) -> None:
    page = write_report(full_run(tmp_path), dataset=feature_data(LABELS)).html.read_text(encoding="utf-8")
    balance = check_page(page)
    assert "img" not in balance.tags
    assert "The first 10 of 12 features." in page
    assert "&lt;b&gt;feature 3" in page


def test_another_data_set_is_not_shown(tmp_path: Path) -> None:
    page = write_report(full_run(tmp_path), dataset=image_data(LABELS[::-1])).html.read_text(encoding="utf-8")
    assert "another label than its certificate" in page
    assert "<img" not in page


def test_training_inputs_never_reach_the_report(tmp_path: Path) -> None:
    """Two data sets that differ in every training record give the same bytes."""
    data = image_data(LABELS)
    other = Split(255 - data.train.inputs, data.train.labels[::-1].copy())
    changed = replace(data, train=other)
    root = full_run(tmp_path)
    first = write_report(root, dataset=data)
    before = (first.html.read_bytes(), first.json.read_bytes())
    second = write_report(root, dataset=changed)
    assert (second.html.read_bytes(), second.json.read_bytes()) == before


def test_a_broken_run_writes_nothing(tmp_path: Path) -> None:
    root = full_run(tmp_path)
    (root / "certificates/l2/certificates.csv").write_text("index,label\n1,x\n")
    with pytest.raises(RunError, match=r"certificates.csv is broken"):
        write_report(root)
    assert not (root / "report.html").exists()
    assert not (root / "report.json").exists()


def test_a_radius_that_no_votes_give_does_not_hide_the_report(tmp_path: Path) -> None:
    """A run that lies must be shown with its failed verification; only the numbers that make no sense are left out."""
    certificates = [Certificate(index, label, label, 9000, label, 9.5) for index, label in enumerate(LABELS)]
    root = write_run(tmp_path / "run", run_record(), certificates)
    files = write_report(root, verification={"ok": False, "problems": ["a radius is too large"], "checks": []})
    page = files.html.read_text(encoding="utf-8")
    assert tuple(check_page(page).sections) == ORDER
    assert "The certificates cannot be summarised" in page
    assert "Average certified" not in page
    assert "Verification FAILED" in page
    assert json.loads(files.json.read_text())["certified"] is None


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        write_report(tmp_path)
