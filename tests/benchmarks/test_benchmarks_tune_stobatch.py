"""Tuning of StoBatch and AdLM: every line changes what is trained, what is recorded is right, finished lines are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401  (first: it makes `tune_stobatch` importable)
import numpy as np
import pytest
import torch
from inline_pool import Inline
from torch import Tensor, nn

import tune_house
import tune_stobatch
import tune_under_attack
from tune_stobatch import CHANGES, MIDDLE, Task, best_lines, grid, merged, one, paper_attacks, tune
from tune_under_attack import ATTACK_SIZE, Measure, measured
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import pgd
from twinproof.certification.method import Method, Sampling
from twinproof.certification.run import smoothed_for_run
from twinproof.data.arrays import from_arrays
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.files import canonical_json
from twinproof.keys import Key
from twinproof.layers.noise import NoiseLayer
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

KEPT = Path(__file__).parents[2] / "results" / "tune-stobatch-mnist.json"
MEASURED = {"inputs": 5, "steps": 2}
FAST = {"batch_size": 64, "copies": 1, "performance": {"device": "cpu"}}


def _tasks(**base: Any) -> list[Task]:
    return list(grid("stobatch", [0.2, 2.0], 1, base, MEASURED))


def test_the_grid_is_the_middle_and_one_change_at_a_time() -> None:
    tasks = _tasks()
    assert len(tasks) == 2 * len(CHANGES)
    assert len({task.name for task in tasks}) == len(tasks)
    assert [task.epsilon for task in tasks[:4]] == [0.2, 2.0, 0.2, 2.0]
    regulariser = {"regulariser": {"attack_steps": 3, "attack_stride": 2.0}}
    assert tasks[0].settings == {"epochs": 20, "batch_size": 4096, **regulariser}, "little budget: larger batches"
    assert tasks[1].settings == {"epochs": 20, "batch_size": 2048, **regulariser}
    moved = _tasks(copies=6)
    assert moved[0].settings["copies"] == 6
    assert len(moved) == len(tasks) - 2, "a change to what is there already is no second line"


def test_a_change_of_one_setting_keeps_the_others_of_its_section() -> None:
    changed = next(task for task in _tasks() if "xi" in task.settings["regulariser"])
    assert changed.settings["regulariser"] == {"attack_steps": 3, "attack_stride": 2.0, "xi": 0.0}
    below: dict[str, Any] = {"noise_layer": {"epsilon_r": 4.0}, "copies": 3}
    assert merged(below, {"noise_layer": {"floor": 0.5}, "copies": 2}) == {
        "noise_layer": {"epsilon_r": 4.0, "floor": 0.5},
        "copies": 2,
    }
    assert below == {"noise_layer": {"epsilon_r": 4.0}, "copies": 3}, "what lies below is not changed"


def _resolved(change: dict[str, Any]) -> ResolvedConfig:
    """What is trained on images of 28x28, where the noise is given instead of searched for."""
    arrays: dict[str, Any] = {"x_train": np.zeros((60, 1, 28, 28), np.uint8), "y_train": np.arange(60) % 2}
    dataset = from_arrays("images", arrays | {"x_test": arrays["x_train"][:2], "y_test": arrays["y_train"][:2]})
    noise = {"recipe": "stobatch", "noise_multiplier": 20.0, "delta": 1e-5, "batch_size": 30, "records": 60_000, "epochs": 20}
    settings = merged({"data": {"source": "images"}}, noise, MIDDLE["stobatch"], change)
    return resolve(parse_train_config(settings), dataset)


def test_the_grid_makes_every_line_that_is_kept() -> None:
    """Planted: a grid without one of its changes, which leaves lines that no committed command makes."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["lines"]
    wanted = {(line["epsilon"], canonical_json(line["settings"])) for line in kept}

    def made(changes: Sequence[dict[str, Any]]) -> set[tuple[float, str]]:
        tasks = grid("stobatch", [0.2, 2.0], 1, {}, {"inputs": 500}, changes)
        return {(task.epsilon, canonical_json(task.settings)) for task in tasks}

    assert len(wanted) == len(kept) > 0
    assert wanted <= made(CHANGES)
    assert not wanted <= made([change for change in CHANGES if change != {"schedule": "linear"}])


@pytest.mark.parametrize("change", CHANGES[1:], ids=str)
def test_every_change_changes_what_is_trained(change: dict[str, Any]) -> None:
    """A change to what the recipe does anyway would be the middle under another name."""
    assert _resolved(change) != _resolved({})
    assert _resolved({"model": "stobatch-cnn"}) == _resolved({}), "this one would be"


def test_the_attacks_are_the_papers() -> None:
    attacks = paper_attacks()
    assert list(attacks) == ["fgsm", "ifgsm", "mim", "pgd"]
    assert {attack.keep for attack in attacks.values()} == {"last"}
    assert [attack.steps for attack in attacks.values()] == [1, 10, 10, 10]
    assert attacks["pgd"].step_size == pytest.approx(ATTACK_SIZE / 10)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {"recipe": "stobatch", "noise_multiplier": 2.0, "steps": 40, "seed": 0, "delta": 1e-4, "learning_rate": 2.0}
    fast = {"regulariser": {"attack_steps": 1}, "data": {"source": "digits"}, **FAST, "batch_size": 256}
    return train(settings | fast, tmp_path_factory.mktemp("tune") / "run")


def test_what_is_recorded_is_what_the_certificates_say(digits_run: Run) -> None:
    digits = load("digits")
    found = measured(digits_run, digits, Measure(20, (0.0, 0.002), {"pgd": pgd(2)}, draws=200, expected_steps=2))
    smoothed = smoothed_for_run(digits_run, digits, torch.device("cpu"), method=Method(norm="linf"))
    labels = digits.test.labels[:20].tolist()
    lines = smoothed.certify(digits.test.inputs[:20], labels, sampling=Sampling(100, 200, 0.001), key=Key.from_seed(0))
    assert found["smoothed"] == sum(one.top == label for one, label in zip(lines, labels, strict=True)) / 20
    assert found["certified 0.002"] == sum(one.correct and one.radius >= 0.002 for one in lines) / 20
    assert found["certified 0"] >= found["certified 0.002"]
    assert found["smoothed"] >= found["under attack"] == found["under pgd"]
    assert found["smoothed"] > 0.5, "otherwise nothing is shown"


def test_the_papers_attacks_see_no_noise_and_the_last_one_does(digits_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a noise layer is silent is seen from what it adds while the attack looks."""
    heard: list[bool] = []

    def watched(attack: Any, target: Any, inputs: Tensor, *rest: Any, **named: Any) -> Any:
        layers = [module for module in _network_of(target).modules() if isinstance(module, NoiseLayer)]
        heard.append(any(not torch.equal(layer(at), at) for layer in layers for at in [torch.zeros(1, *layer.shape)]))
        return run_attack(attack, target, inputs, *rest, **named)

    monkeypatch.setattr(tune_under_attack, "run_attack", watched)
    measured(digits_run, load("digits"), Measure(3, (), {"a": pgd(1), "b": pgd(1)}, draws=100, expected_steps=1))
    assert heard == [False, False, True]


def _network_of(target: Any) -> nn.Module:
    network = target if isinstance(target, nn.Module) else target.model
    assert isinstance(network, nn.Module)
    return network


@pytest.mark.parametrize("recipe", ["stobatch", "adlm"])
def test_a_line_trains_attacks_certifies_and_tells(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load(DataConfig(source="digits"))
    monkeypatch.setattr(tune_stobatch, "load", lambda config: digits)
    monkeypatch.setattr(tune_stobatch, "HELD_OUT", 100)
    monkeypatch.setattr(tune_stobatch, "DELTA", 1e-4)
    monkeypatch.setattr(tune_stobatch, "ATTACK_STEPS", 2)
    trained: list[Any] = []

    def watched(settings: dict[str, Any], *arguments: Any, **named: Any) -> Run:
        """With a noise that is given: the search for it takes seconds."""
        trained.append((settings.pop("epsilon"), settings["performance"]))
        return train({**settings, "noise_multiplier": 20.0}, *arguments, **named)

    monkeypatch.setattr(tune_stobatch, "train", watched)
    freed: list[int] = []
    monkeypatch.setattr(tune_stobatch, "free_device_memory", lambda: freed.append(1))
    settings = merged(MIDDLE[recipe], FAST, {"model": "mlp"})
    line = one(Task(recipe, 2.0, 0, settings, **MEASURED))
    assert "error" not in line
    assert trained == [(2.0, {"device": "cpu", "report_every": 10**9})], "one report, at the end; settings of speed stay"
    assert line["settings"] == settings
    names = {"smoothed", "under attack", "under fgsm", "under ifgsm", "under mim", "under pgd", "under attack in expectation"}
    assert names <= set(line)
    assert sum(name.startswith("certified ") for name in line) == 3
    assert all(0 <= line[name] <= 1 for name in names)
    wrong = one(Task(recipe, 2.0, 0, {**settings, "copies": 0}, **MEASURED))
    assert "never be seen" in wrong["error"]["what"]
    assert freed == [1, 1], "what failed gives its memory back too"


def test_finished_lines_are_not_made_again_and_none_is_begun_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []

    def counted(task: Task) -> dict[str, Any]:
        worked.append(task.name)
        return {**json.loads(task.name), "under attack": 0.1 * len(worked)}

    monkeypatch.setattr(tune_stobatch, "one", counted)
    monkeypatch.setattr(tune_house, "ProcessPoolExecutor", Inline)
    out, tasks = tmp_path / "lines.json", _tasks()[:6]
    tune(tasks[:4], out, 1)
    tune(tasks, out, 1, minutes=0)
    assert len(worked) == 4, "no time, no line"
    tune(tasks, out, 1, minutes=5)
    assert worked == [task.name for task in tasks]
    written = json.loads(out.read_text())
    assert len(written["lines"]) == 6
    assert [line["epsilon"] for line in written["best"]] == [0.2, 2.0]


def test_the_best_is_the_best_mean_over_seeds() -> None:
    def line(epsilon: float, copies: int, under: float) -> dict[str, Any]:
        return {"recipe": "stobatch", "epsilon": epsilon, "settings": {"copies": copies}, "under attack": under}

    lines = [line(2.0, 1, 0.9), line(2.0, 1, 0.1), line(2.0, 2, 0.6), line(2.0, 2, 0.6), line(0.2, 3, 0.2)]
    lines.append({"recipe": "stobatch", "epsilon": 0.2, "settings": {"copies": 9}, "error": {"what": "diverged"}})
    assert [(one["epsilon"], one["settings"]["copies"], one["under attack"], one["seeds"]) for one in best_lines(lines)] == [
        (0.2, 3, 0.2, 1),
        (2.0, 2, 0.6, 2),
    ]


def test_the_command_line_makes_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tune_stobatch, "tune", lambda tasks, *rest: asked.append((tasks, *rest)))
    words = ["--out", "lines.json", "--epsilon", "2", "--seeds", "2", "--minutes", "3.5", "--processes", "4"]
    monkeypatch.setattr(sys, "argv", ["tune_stobatch.py", *words, "--changes", '[{}, {"copies": 8}]'])
    tune_stobatch.main()
    tasks, out, processes, minutes = asked[0]
    assert [(task.seed, task.settings.get("copies")) for task in tasks] == [(0, None), (1, None), (0, 8), (1, 8)]
    assert (out, processes, minutes) == (Path("lines.json"), 4, 3.5)
