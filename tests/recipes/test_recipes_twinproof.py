"""The house recipe: averaged weights are released, nothing is promised anew, and a resumed run ends with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import ledger_lines, model_bytes, released, tiny
from torch import Tensor, nn

from twinproof.auditing.verify import verify_run
from twinproof.evaluation.accuracy import clean_accuracy
from twinproof.guarantee import Status
from twinproof.recipes import train as train_module
from twinproof.recipes.finish import Reporter
from twinproof.recipes.train import train
from twinproof.runs.run import load_run_data
from twinproof.training.loop import load_checkpoint, save_checkpoint
from twinproof.training.passes import DeviceRecords

DECAY, STEPS = 0.6, 6


@pytest.fixture
def settings(source: Path) -> dict[str, Any]:
    return tiny(source, recipe="twinproof", steps=STEPS, averaging=DECAY)


def _weights(root: Path) -> dict[str, Tensor]:
    return load_file(root / "model.safetensors")


@pytest.mark.parametrize("recipe", ["twinproof", "dpsgd", "regular"])
def test_the_released_weights_are_the_average_of_every_steps(settings: dict[str, Any], tmp_path: Path, recipe: str) -> None:
    settings = settings | {"recipe": recipe}
    iterates = [
        _weights(train(settings | {"averaging": 0, "steps": steps}, tmp_path / f"{steps}").root)
        for steps in range(1, STEPS + 1)
    ]
    counts = [DECAY ** (STEPS - step) for step in range(1, STEPS + 1)]
    found = _weights(train(settings, tmp_path / "averaged").root)
    for name, value in found.items():
        wanted = sum(
            (count * weights[name].double() for count, weights in zip(counts, iterates, strict=True)), torch.zeros(())
        ) / sum(counts)
        torch.testing.assert_close(value.double(), wanted, rtol=0, atol=2e-6)
        assert float((value - iterates[-1][name]).abs().max()) > 1e-4, "the comparison tells the average from the last step"


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_an_interrupted_run_ends_with_the_same_bits(settings: dict[str, Any], tmp_path: Path, schedule: str) -> None:
    settings = settings | {"schedule": schedule}
    whole = train(settings, tmp_path / "whole")
    interrupt(settings, tmp_path / "run", steps=STEPS - 1)
    resumed = train(None, tmp_path / "run", resume=True)
    assert model_bytes(resumed.root) == model_bytes(whole.root)
    assert released(resumed.root) == released(whole.root)


def test_a_planted_resumption_that_forgets_the_average_is_caught(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(settings, tmp_path / "whole")
    interrupt(settings, tmp_path / "run", steps=STEPS - 1)

    def forgetful(*arguments: Any, average: Any, **named: Any) -> int:
        return load_checkpoint(*arguments, **named)

    monkeypatch.setattr(train_module, "load_checkpoint", forgetful)
    assert model_bytes(train(None, tmp_path / "run", resume=True).root) != model_bytes(whole.root)


def _spent(root: Path) -> list[Any]:
    kinds = ("poisson-gaussian", "gaussian")
    return [line["body"] for line in ledger_lines(root) if line["kind"] in kinds]


def test_averaging_and_schedule_change_no_promise(settings: dict[str, Any], tmp_path: Path) -> None:
    settings = settings | {"seed": None}
    plain = train(settings | {"averaging": 0}, tmp_path / "plain")
    ours = train(settings | {"schedule": "linear"}, tmp_path / "ours")
    assert ours.guarantee.status is Status.PROVEN
    assert ours.guarantee == plain.guarantee
    assert ours.record["privacy"] == plain.record["privacy"]
    assert _spent(ours.root) == _spent(plain.root)
    assert verify_run(ours.root).ok


def test_progress_and_accuracy_are_those_of_the_released_weights(settings: dict[str, Any], tmp_path: Path) -> None:
    run = train(settings | {"noise_multiplier": 2.0}, tmp_path / "run")
    last = json.loads(run.layout.metrics.read_text().splitlines()[-1])
    data = load_run_data(run)
    test = DeviceRecords(data.test, data.levels, torch.device("cpu"))
    found = clean_accuracy(run.model(), test.inputs(slice(None)), test.labels)
    assert last["test_loss"] == pytest.approx(found.loss, rel=1e-6)
    assert last["test_accuracy"] == run.record["accuracy"]["value"] == found.correct / found.total
    plain = train(settings | {"noise_multiplier": 2.0, "averaging": 0}, tmp_path / "plain")
    other = json.loads(plain.layout.metrics.read_text().splitlines()[-1])
    assert other["test_loss"] != pytest.approx(found.loss, rel=1e-4), "the comparison tells the average from the last step"


@pytest.mark.parametrize("model", ["scatter-cnn", "gelu-cnn"])
def test_its_networks_train_privately_and_are_read_back(tmp_path: Path, model: str) -> None:
    settings = tiny("digits", recipe="twinproof", model=model, steps=2, batch_size=16, copies=1, width=1)
    run = train(settings, tmp_path / "run")
    names = set(_weights(run.root))
    assert names == set(run.model().state_dict())
    assert ("0.coarse" in names) is (model == "scatter-cnn"), "fixed numbers lie with the weights"
    assert verify_run(run.root).ok


@pytest.mark.parametrize("planted", [False, True])
def test_nothing_is_said_of_a_step_before_its_checkpoint(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """A step that was shown and is taken again, with other passes, would put the same noise on another sum."""
    kept: list[int] = []
    early: list[int] = []
    report = Reporter.report

    def saved(*arguments: Any, step: int, **named: Any) -> None:
        if not planted or step % 2 == 0:  # as it was: checkpoints at their own pace
            kept.append(step)
            save_checkpoint(*arguments, step=step, **named)

    def said(self: Reporter, model: nn.Module, done: int) -> None:
        if done not in kept:
            early.append(done)
        report(self, model, done)

    monkeypatch.setattr(train_module, "save_checkpoint", saved)
    monkeypatch.setattr(Reporter, "report", said)
    train(settings, tmp_path / "run")
    assert bool(early) is planted


def test_a_report_that_a_kill_prevented_is_made_up_for(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(settings, tmp_path / "whole")

    def killed(self: Reporter, model: nn.Module, done: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "report", killed)
        with pytest.raises(KeyboardInterrupt):
            train(settings, tmp_path / "run")
    resumed = train(None, tmp_path / "run", resume=True)
    assert released(resumed.root) == released(whole.root)
