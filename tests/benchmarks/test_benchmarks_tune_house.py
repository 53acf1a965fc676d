"""Tuning of the house recipe: every line is a valid setting, the test set stays out of it, finished lines are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401  (first: it makes `tune_house` importable)
import numpy as np
import pytest
from inline_pool import Inline

import tune_house
from tune_house import CHANGES, Task, best_lines, grid, held_out, one, tune
from twinproof.data.arrays import from_arrays
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.layers.networks import Prior
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.runs.run import Run

MEASURED = {"inputs": 5, "draws": 20, "steps": 2}


def _tasks(**base: Any) -> list[Task]:
    return list(grid(["mnist", "fashion-mnist"], [0.25, 1.0], 1, base, MEASURED))


def test_the_grid_is_the_middle_and_one_change_at_a_time() -> None:
    tasks = _tasks()
    assert len(tasks) == 4 * len(CHANGES)
    assert len({task.name for task in tasks}) == len(tasks)
    assert [(task.data, task.sigma) for task in tasks[:4]] == [
        ("mnist", 0.25),
        ("mnist", 1.0),
        ("fashion-mnist", 0.25),
        ("fashion-mnist", 1.0),
    ]
    assert all(task.settings == {"batch_size": 2048} for task in tasks[:4])
    moved = _tasks(model="scatter-cnn")
    assert moved[0].settings == {"batch_size": 2048, "model": "scatter-cnn"}
    assert len(moved) == len(tasks) - 4, "a change to what is there already is no second line"


def _resolved(change: dict[str, Any]) -> ResolvedConfig:
    """What is trained on images of 28x28, where the noise is given instead of searched for."""
    arrays: dict[str, Any] = {"x_train": np.zeros((60, 1, 28, 28), np.uint8), "y_train": np.arange(60) % 2}
    dataset = from_arrays("images", arrays | {"x_test": arrays["x_train"][:2], "y_test": arrays["y_train"][:2]})
    noise = {"recipe": "twinproof", "noise_multiplier": 20.0, "delta": 1e-5, "batch_size": 30}
    return resolve(parse_train_config({"data": {"source": "images"}, **noise, **change, "records": 60_000}), dataset)


def test_the_middle_is_the_recipe_with_its_learned_weights() -> None:
    assert CHANGES[0] == {}
    middle = _resolved({})
    assert (middle.model, middle.width, middle.prior) == ("gelu-cnn", 2, Prior.FIGURES)


@pytest.mark.parametrize("change", CHANGES[1:], ids=str)
def test_every_change_changes_what_is_trained(change: dict[str, Any]) -> None:
    """A change to what the recipe does anyway would be the middle under another name."""
    assert _resolved(change) != _resolved({})
    assert _resolved({"model": "gelu-cnn"}) == _resolved({}), "this one would be"


def test_changes_can_be_named_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Task]] = []
    monkeypatch.setattr(tune_house, "tune", lambda tasks, out, processes: asked.append(tasks))
    words = ["--out", "lines.json", "--data", "mnist", "--sigma", "0.5", "--seeds", "2", "--base", '{"copies": 8}']
    monkeypatch.setattr(sys, "argv", ["tune_house.py", *words, "--changes", '[{}, {"prior": "none"}, {"copies": 8}]'])
    tune_house.main()
    found = [(task.seed, task.settings) for task in asked[0]]
    middle = {"batch_size": 2048, "copies": 8}
    assert found == [(seed, settings) for settings in (middle, {**middle, "prior": "none"}) for seed in (0, 1)]


@pytest.mark.parametrize("text", ['{"copies": 8}', '["copies"]', "8", "[", "copies=8"])
def test_changes_that_are_no_list_of_settings_are_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tune_house.py", "--out", "lines.json", "--changes", text])
    with pytest.raises(SystemExit) as ended:
        tune_house.main()
    assert ended.value.code == 2
    assert "--changes" in capsys.readouterr().err


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_change_is_a_setting_of_the_recipe(change: dict[str, Any]) -> None:
    config = parse_train_config({"data": {"source": "mnist"}, "recipe": "twinproof", **change})
    for key, value in change.items():
        found = getattr(config, key)
        assert (found.model_dump(exclude_none=True) if key == "regulariser" else found) == value


def test_held_out_records_are_training_records_and_trained_on_no_more() -> None:
    digits = load(DataConfig(source="digits"))
    part = held_out(digits, 100)
    together = np.concatenate([part.train.inputs, part.test.inputs])
    np.testing.assert_array_equal(together, digits.train.inputs)
    np.testing.assert_array_equal(np.concatenate([part.train.labels, part.test.labels]), digits.train.labels)
    assert len(part.test) == 100


def test_a_line_trains_certifies_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load(DataConfig(source="digits"))
    monkeypatch.setattr(tune_house, "load", lambda config: digits)
    monkeypatch.setattr(tune_house, "HELD_OUT", 100)
    monkeypatch.setattr(tune_house, "PRIVACY", {"recipe": "twinproof", "noise_multiplier": 20.0, "delta": 1e-4})
    trained: list[Any] = []
    freed: list[int] = []

    def watched(settings: dict[str, Any], *arguments: Any, **named: Any) -> Run:
        trained.append(settings["performance"])
        return train(settings, *arguments, **named)

    monkeypatch.setattr(tune_house, "train", watched)
    monkeypatch.setattr(tune_house, "free_device_memory", lambda: freed.append(1))
    settings = {"batch_size": 64, "copies": 1, "model": "mlp", "performance": {"device": "cpu"}}
    line = one(Task("digits", 0.25, 0, settings, **MEASURED))
    assert "error" not in line
    assert trained == [{"device": "cpu", "report_every": 10**9}], "one report, at the end; other settings of speed stay"
    assert freed == [1]
    assert line["settings"] == settings
    assert 0 <= line["acr"] <= 0.25 * 4
    assert set(line["certified_accuracy"]) == {"0", "0.25", "0.5", "1"}
    assert line["epsilon_of_the_plan"] > 0
    wrong = one(Task("digits", 0.25, 0, {**settings, "copies": 0}, **MEASURED))
    assert "too few noisy copies" in wrong["error"]["what"]
    assert freed == [1, 1], "what failed gives its memory back too"


def test_a_recipe_without_privacy_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load(DataConfig(source="digits"))
    monkeypatch.setattr(tune_house, "load", lambda config: digits)
    monkeypatch.setattr(tune_house, "HELD_OUT", 100)
    settings = {"recipe": "gaussian", "batch_size": 64, "model": "mlp", "performance": {"device": "cpu"}}
    line = one(Task("digits", 0.25, 0, settings, **MEASURED))
    assert line["epsilon_of_the_plan"] is None


def test_finished_lines_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []

    def counted(task: Task) -> dict[str, Any]:
        worked.append(task.name)
        return {**task.as_dict(), "acr": 0.1 * len(worked)}

    monkeypatch.setattr(tune_house, "one", counted)
    monkeypatch.setattr(tune_house, "ProcessPoolExecutor", Inline)
    out, tasks = tmp_path / "lines.json", _tasks()[:6]
    tune(tasks[:4], out, 1)
    tune(tasks, out, 1)
    assert worked == [task.name for task in tasks]
    assert len(json.loads(out.read_text())["lines"]) == 6
    tune(_tasks(width=3)[:1], out, 1)
    assert len(worked) == 7, "another setting is another line"


def test_the_best_is_the_best_mean_over_seeds() -> None:
    def line(data: str, width: int, seed: int, acr: float) -> dict[str, Any]:
        return {"data": data, "sigma": 0.5, "seed": seed, "settings": {"width": width}, "acr": acr}

    lines = [
        line("a", 1, 0, 0.9),
        line("a", 1, 1, 0.1),
        line("a", 2, 0, 0.6),
        line("a", 2, 1, 0.6),
        line("b", 3, 0, 0.2),
        {"data": "b", "sigma": 0.5, "seed": 0, "settings": {"width": 9}, "error": {"what": "diverged"}},
    ]
    assert best_lines(lines) == [
        {"data": "a", "sigma": 0.5, "settings": {"width": 2}, "acr": 0.6, "seeds": 2},
        {"data": "b", "sigma": 0.5, "settings": {"width": 3}, "acr": 0.2, "seeds": 1},
    ]
