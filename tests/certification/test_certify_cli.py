"""``twinproof certify`` with other norms, bounds and statistics: what it prints, and one clear error for each mistake."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

QUICK = ("--n", "200", "--n0", "20", "--limit", "8", "--device", "cpu")


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_answer_names_the_method(root: Path, call: Any) -> None:
    options = ("--norm", "linf", "--bound", "hgm", "--statistic", "scores", "--runner-up", "union")
    answer = call("certify", root, *QUICK, *options, "--json").json()
    named = {name: answer[name] for name in ("norm", "bound", "statistic", "confidence", "runner_up", "law", "place")}
    assert named == {
        "norm": "linf",
        "bound": "hgm",
        "statistic": "scores",
        "confidence": "empirical-bernstein",
        "runner_up": "union",
        "law": "gaussian",
        "place": "input",
    }
    assert answer["operator_norm"] == pytest.approx(8.0)


def test_people_see_norm_and_bound_and_a_warning(root: Path, call: Any) -> None:
    shown = call("certify", root, *QUICK).out
    assert "l2, bound tight (votes, clopper-pearson, complement)" in shown
    assert "gaussian noise at input" in shown
    assert "refuted" not in shown
    assert "this bound is refuted" in call("certify", root, *QUICK, "--bound", "published").out


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--norm", "l7"), "l1, l2, linf"),
        (("--bound", "longest"), "best, tight"),
        (("--statistic", "logits"), "votes, scores"),
        (("--confidence", "bootstrap"), "hoeffding"),
        (("--runner-up", "second"), "complement, union"),
        (("--statistic", "scores", "--confidence", "clopper-pearson"), "empirical-bernstein"),
        (("--statistic", "scores", "--target-radius", "0.1"), "votes, clopper-pearson, complement"),
        (("--runner-up", "union", "--shared-noise"), "votes, clopper-pearson, complement"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(root: Path, call: Any, options: tuple[str, ...], wanted: str) -> None:
    ended = call("certify", root, *QUICK, *options, "--json")
    assert ended.code == 2
    assert wanted in ended.json()["error"]["wanted"]
    assert not (root / "certificates").exists()
