"""Several runs in one page: only what is comparable stands together, and no promise shines brighter than in its own report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_runs import (
    HOSTILE,
    IMAGES,
    LABELS,
    attacked_run,
    certificate_settings,
    certified_run,
    check_page,
    crossing,
    make_certificates,
    run_record,
    section,
    text_of,
    write_run,
)
from report_runs import each_plot_once as each_plot_once

from twinproof.errors import UserError
from twinproof.evaluation.certified import summarize
from twinproof.guarantee import Status
from twinproof.reporting import write_comparison
from twinproof.runs.records import read_certificates


def compared(roots: Sequence[Path], out: Path) -> tuple[str, dict[str, Any]]:
    files = write_comparison([str(root) for root in roots], str(out))
    page = files.html.read_text(encoding="utf-8")
    check_page(page)
    return page, json.loads(files.json.read_text())


def test_runs_stand_side_by_side(tmp_path: Path) -> None:
    refuted = run_record(Status.REFUTED, recipe=HOSTILE)
    roots = [
        write_run(tmp_path / "a" / "run", run_record(), make_certificates(LABELS)),
        write_run(tmp_path / "b" / "run", refuted, make_certificates(LABELS, seed=2)),
    ]
    page, record = compared(roots, tmp_path / "out" / "both.html")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"both.html", "both.json"}
    assert check_page(page).sections == ["guarantees", "numbers", "certified", "table"]
    assert page.count("run (2)") == 4, "three tables and the legend"
    assert "&lt;script&gt;" in page
    assert page.count("<td>3.000</td>") == 1, "a refuted epsilon is not printed"
    files = [root / "certificates/l2/certificates.csv" for root in roots]
    wanted = [summarize(read_certificates(file), certificate_settings()).as_dict() for file in files]
    assert [run["certifications"][0]["certified"] for run in record["runs"]] == wanted
    assert [run["run"] for run in record["runs"]] == ["run", "run (2)"]


def test_a_badge_is_that_of_the_runs_own_report(tmp_path: Path) -> None:
    """No green for certificates that an attack contradicts or that are gone."""
    roots = [certified_run(tmp_path / "sound"), attacked_run(tmp_path / "attacked", IMAGES, crossing)]
    gone = certified_run(tmp_path / "gone")
    (gone / "certificates/l2/certificates.csv").unlink()
    page, record = compared([*roots, gone], tmp_path / "out.html")
    rows = section(page, "guarantees").split("<tbody>")[1].split("</tr>")
    badges = [re.findall(r'class="badge (\w+)".*?</span>\s*([\w ]+)</span>', row, flags=re.DOTALL) for row in rows[:3]]
    proven = ("proven", "proven")
    assert badges == [[proven, proven], [proven, ("refuted", "contradicted")], [proven, ("refuted", "evidence missing")]]
    assert "attacked (claimed, contradicted)" in text_of(section(page, "certified"))
    shown = [next(iter(run["guarantees"]["robustness"].values()))["shown"] for run in record["runs"]]
    assert shown == ["proven", "contradicted", "evidence missing"]


def test_unlike_runs_are_called_unlike(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", run_record(), make_certificates(LABELS))
    settings = certificate_settings(n=500, alpha=0.05, inputs=40)
    second = write_run(tmp_path / "second", run_record(), make_certificates(LABELS[:40]), settings)
    page, record = compared([first, second], tmp_path)
    assert "the runs differ in alpha, the number of draws, the number of certified inputs." in page
    assert record["differences"] == ["alpha", "the number of draws", "the number of certified inputs"]


def test_runs_without_certificates_are_named(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare")
    page, _ = compared([bare], tmp_path / "one")
    assert "None of these runs has been certified yet." in page
    page, _ = compared([bare, certified_run(tmp_path / "full")], tmp_path / "two")
    assert "Not certified yet: bare." in page


def test_runs_are_compared_within_one_norm_only(tmp_path: Path) -> None:
    roots = [
        certified_run(tmp_path / "sound"),
        certified_run(tmp_path / "layered", norm="linf", law="laplace", place="first-layer"),
        certified_run(tmp_path / "printed", Status.REFUTED, bound="published"),
        write_run(tmp_path / "bare"),
    ]
    page, record = compared(roots, tmp_path / "out.html")
    parts = [f"{name}-{norm}" for norm in ("l2", "linf") for name in ("numbers", "certified", "table")]
    assert check_page(page).sections == ["guarantees", *parts]
    assert "are in different norms" in page
    shown = {name: text_of(section(page, name)) for name in ("guarantees", *parts)}
    for name in parts:
        assert ("layered" in shown[name]) == name.endswith("-linf")
        assert ("printed (claimed, refuted)" in shown[name]) == ("sound" in shown[name]) == name.endswith("-l2")
    assert "linf, tight bound Laplace, after the first layer" in shown["guarantees"]
    assert "Certified and claimed accuracy in l2" in shown["certified-l2"]
    assert "Not certified yet: bare." in shown["certified-l2"]
    assert record["differences"][:4] == ["the norm of the radii", "the bound", "the law of the noise", "the place of the noise"]


def test_runs_of_one_norm_and_one_kind_are_named_once(tmp_path: Path) -> None:
    roots = [certified_run(tmp_path / name, Status.REFUTED, bound="published", norm="linf") for name in ("one", "two")]
    page, _ = compared(roots, tmp_path / "out.html")
    assert check_page(page).sections == ["guarantees", "numbers", "certified", "table"]
    shown = text_of(page)
    assert "Claimed accuracy, refuted" in shown
    assert "claimed linf radius, refuted" in shown
    assert "different norms" not in shown


def test_a_target_radius_ends_the_table(tmp_path: Path) -> None:
    roots = [certified_run(tmp_path / "all"), certified_run(tmp_path / "target", target_radius=0.5)]
    page, _ = compared(roots, tmp_path / "out.html")
    rows = section(page, "table").split("<tbody>")[1].split("</tr>")
    assert [row.count("<td>–</td>") for row in rows[:2]] == [0, 3], "0.75, 1 and 1.25"


def test_many_runs_can_be_drawn(tmp_path: Path) -> None:
    roots = [write_run(tmp_path / str(seed), run_record(), make_certificates(LABELS, seed)) for seed in range(9)]
    compared(roots, tmp_path / "out")


def test_nothing_to_compare_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        write_comparison([], tmp_path)
