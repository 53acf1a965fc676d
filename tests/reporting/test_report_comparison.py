"""Several runs in one page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_page import check_page
from report_runs import LABELS, certificate_settings, make_certificates, privacy_promise, run_record, write_run

from twinproof.errors import UserError
from twinproof.evaluation.certified import summarize
from twinproof.guarantee import Status
from twinproof.reporting import write_comparison
from twinproof.runs.certificates import read_certificates


def two_runs(root: Path) -> list[Path]:
    refuted = {**run_record()["guarantees"], "privacy": privacy_promise(Status.REFUTED).as_dict()}
    return [
        write_run(root / "a" / "run", run_record(), make_certificates(LABELS)),
        write_run(root / "b" / "run", run_record(recipe="<i>stobatch", guarantees=refuted), make_certificates(LABELS, seed=2)),
    ]


def test_runs_stand_side_by_side(tmp_path: Path) -> None:
    roots = two_runs(tmp_path)
    files = write_comparison(roots, tmp_path / "out" / "both.html")
    assert (files.html.name, files.json.name) == ("both.html", "both.json")
    page = files.html.read_text(encoding="utf-8")
    balance = check_page(page)
    assert balance.sections == ["guarantees", "numbers", "certified", "table"]
    assert page.count("run (2)") == 4  # three tables and the legend
    assert "<i>" not in page
    assert page.count("<td>3.000</td>") == 1  # a refuted epsilon is not printed
    record = json.loads(files.json.read_text())
    files = [root / "certificates/l2/certificates.csv" for root in roots]
    wanted = [summarize(read_certificates(file), certificate_settings()).as_dict() for file in files]
    assert [run["certified"] for run in record["runs"]] == wanted
    assert [run["run"] for run in record["runs"]] == ["run", "run (2)"]


def test_unlike_runs_are_called_unlike(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", run_record(), make_certificates(LABELS))
    settings = certificate_settings(n=500, alpha=0.05, inputs=40)
    second = write_run(tmp_path / "second", run_record(), make_certificates(LABELS[:40]), settings)
    page = write_comparison([first, second], tmp_path).html.read_text(encoding="utf-8")
    assert "the runs differ in the number of certified inputs, alpha, the number of draws." in page


def test_runs_without_certificates_are_named(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare")
    page = write_comparison([bare], tmp_path / "one").html.read_text(encoding="utf-8")
    assert "None of these runs has been certified yet." in page
    full = write_run(tmp_path / "full", run_record(), make_certificates(LABELS))
    page = write_comparison([bare, full], tmp_path / "two").html.read_text(encoding="utf-8")
    assert "Not certified yet: bare." in page
    check_page(page)


def test_many_runs_can_be_drawn(tmp_path: Path) -> None:
    roots = [write_run(tmp_path / str(seed), run_record(), make_certificates(LABELS, seed)) for seed in range(9)]
    check_page(write_comparison(roots, tmp_path / "out").html.read_text(encoding="utf-8"))


def test_nothing_to_compare_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        write_comparison([], tmp_path)
