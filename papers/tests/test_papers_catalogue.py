"""Every table and figure of the papers is listed, printed numbers are the printed ones, and what runs says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinproof.errors import ConfigError
from twinproof_papers.catalogue.experiments import EXPERIMENTS, find_experiment
from twinproof_papers.reproduce import REPRODUCTIONS

WHOLE = (
    [f"hgm-fig{number}" for number in range(1, 7)]
    + ["stobatch-table1", *(f"stobatch-fig{number}" for number in range(1, 10))]
    + [f"dpcert-table{number}" for number in range(1, 5)]
    + [f"dpcert-fig{number}" for number in range(1, 20)]
    + ["pixeldp-readme", "securesgd-mnist", "stobatch-mnist"]
)


def test_every_table_and_figure_is_listed() -> None:
    assert sorted(EXPERIMENTS) == sorted(WHOLE)


def test_what_has_no_obstacle_can_be_made_and_nothing_else() -> None:
    assert {name for name, one in EXPERIMENTS.items() if not one.obstacle} == set(REPRODUCTIONS)


@pytest.mark.parametrize(
    ("name", "key", "value", "unit"),
    [
        ("hgm-fig3", "hgm-pixeldp over pixeldp", 4.17, "points"),
        ("hgm-fig2", "hgm-pixeldp over pixeldp", 8.63, "points"),
        ("hgm-fig5", "securesgd over dpsgd", 10.74, "points"),
        ("hgm-fig5", "securesgd over securesgd-agm", 2.9, "points"),
        ("hgm-fig5", "securesgd rise", 29.67, "points"),
        ("securesgd-mnist", "securesgd conventional epsilon 0.2", 41.64, "%"),
        ("securesgd-mnist", "securesgd conventional epsilon 2", 78.64, "%"),
        ("securesgd-mnist", "securesgd certified size 0.05", 86.74, "%"),
        ("securesgd-mnist", "securesgd certified size 0.6", 7.99, "%"),
        ("hgm-fig4", "securesgd over adlm", 17.75, "points"),
        ("stobatch-fig2", "stobatch conventional epsilon 0.2", 82.7, "%"),
        ("stobatch-fig2", "stobatch-published conventional epsilon 2", 89.59, "%"),
        ("stobatch-fig2", "stobatch over adlm", 56.21, "points"),
        ("stobatch-fig2", "stobatch-published over adlm-published", 56.21, "points"),
        ("stobatch-fig4", "stobatch over dpsgd", 62.2, "points"),
        ("stobatch-fig4", "securesgd drop", 17.07, "points"),
        ("stobatch-fig6", "pixeldp certified size 0.6 FGSM", 77.47, "%"),
        ("stobatch-mnist", "stobatch-published certified size 0.05", 84.29, "%"),
        ("stobatch-mnist", "stobatch certified size 0.6", 72.41, "%"),
        ("dpcert-table2", "mnist dp-gaussian sigma 0.25 average certified radius", 0.735, "radius"),
        ("dpcert-table2", "cifar10 dp-macer sigma 1 certified at 0.25", 22.3, "%"),
        ("dpcert-table2", "fashion-mnist psac sigma 0.5 accuracy", 86.34, "%"),
        ("dpcert-table4", "fashion-mnist clipping norm 0.05", 83.42, "%"),
    ],
)
def test_printed_numbers(name: str, key: str, value: float, unit: str) -> None:
    found = {number.key: number for number in EXPERIMENTS[name].published}[key]
    assert (found.value, found.unit) == (value, unit)


def test_keys_are_unique_and_numbers_say_where_they_stand() -> None:
    for experiment in EXPERIMENTS.values():
        keys = [number.key for number in experiment.published]
        assert len(keys) == len(set(keys)), experiment.name
        assert all(number.where and number.unit in ("%", "points", "radius") for number in experiment.published)
    assert len(EXPERIMENTS["dpcert-table2"].published) == 21 * 9


def test_data_decide_whether_a_figure_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    figure = EXPERIMENTS["hgm-fig3"]
    without = figure.availability(tmp_path)
    assert not without.runs
    assert "mnist is not there" in without.reason
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_bytes(b"")
    assert figure.availability(tmp_path).runs
    assert not EXPERIMENTS["hgm-fig2"].availability(tmp_path).runs, "cifar10 is still missing"
    assert not EXPERIMENTS["stobatch-fig9"].availability(tmp_path).runs
    assert "vision transformer" in EXPERIMENTS["dpcert-fig2"].availability(tmp_path).reason
    both = EXPERIMENTS["dpcert-table2"].availability(tmp_path)
    assert not both.runs, "one of its two data sets is missing"
    assert "fashion-mnist is not there" in both.reason
    assert "the data set mnist" not in both.reason
    assert EXPERIMENTS["hgm-fig1"].availability(tmp_path).runs


def test_unknown_names_are_answered_with_a_near_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hgm-fig3'"):
        find_experiment("hgm-figure3")
    with pytest.raises(ConfigError, match="--list"):
        find_experiment("zzz")
