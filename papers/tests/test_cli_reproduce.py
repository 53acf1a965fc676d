"""``twinproof reproduce`` as a user meets it: the list, a figure, the answer for machines, one clear error for each mistake."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest


def test_help_shows_an_example(call: Any) -> None:
    answer = call("reproduce", "--help")
    assert answer.code == 0
    assert "Example: twinproof reproduce" in answer.out


def test_the_list_names_everything_and_says_what_runs(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    listed = call("reproduce", "--list", "--json", "--data-root", tmp_path).json()["experiments"]
    by_name = {one["name"]: one for one in listed}
    assert by_name["hgm-fig1"]["runs_here"]
    assert not by_name["hgm-fig3"]["runs_here"]
    assert "mnist is not there" in by_name["hgm-fig3"]["reason"]
    assert "vision transformer" in by_name["dpcert-fig2"]["reason"]
    assert all(one["reason"] for one in listed)
    text = call("reproduce", "--list", "--data-root", tmp_path).out
    assert all(name in text for name in by_name)


class Second:
    """All that the list asks of ranks: this one is not the first."""

    is_first = False


def test_of_several_ranks_the_first_tells_the_list(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinproof_papers.command.launched_ranks", lambda *, as_json: nullcontext(Second()))
    answer = call("reproduce", "--list", "--data-root", tmp_path)
    assert (answer.code, answer.out) == (0, "")


def test_a_figure_is_made(call: Any, tmp_path: Path) -> None:
    answer = call("reproduce", "hgm-fig1", "--out", tmp_path, "--json")
    assert answer.code == 0, answer.err
    files = answer.json()["files"]
    assert all(Path(file).is_file() for file in files.values())
    assert json.loads(Path(files["results"]).read_text())["item"] == "Figure 1"
    assert "hgm-fig1: Figure 1" in call("reproduce", "hgm-fig1", "--out", tmp_path).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to reproduce was named"),
        (("hgm-fig33",), "did you mean"),
        (("stobatch-fig9",), "no reader"),
        (("hgm-fig3", "--seeds", "0"), "seeds cannot be used"),
        (("hgm-fig3",), "needs the data set 'mnist'"),
        (("dpcert-table2", "--quick", "--methods", "dpsgd,regula"), "did you mean 'regular'"),
        (("dpcert-table2", "--quick", "--methods", "dpsgd", "--methods", "zzz"), "the table has no such row"),
        (("hgm-fig1", "--methods", "dpsgd"), "no rows to choose from"),
    ],
)
def test_mistakes_are_answered_clearly(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    answer = call("reproduce", *arguments, "--out", tmp_path)
    assert answer.code == 2
    assert words in answer.err
    assert list(tmp_path.iterdir()) == []
