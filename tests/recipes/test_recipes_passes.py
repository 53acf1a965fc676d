"""A resumed run computes its passes as it was begun, on whatever machine it goes on; what cannot be kept to is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from small_runs import model_bytes, run_json, tiny

from rank_processes import quick_to_part, run_ranks
from twinproof.errors import RunError
from twinproof.recipes import train as train_module
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.resumption import PassesOfRun, kept_to, refuse_other_passes
from twinproof.recipes.train import train

PASSES = "private/passes.json"
MANY = 8  # threads: passes are cut for that many workers


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def settings(source: Path) -> dict[str, Any]:
    # Copies belong to passes: with passes of another size the model is another one.
    return tiny(source, recipe="dpcert-gaussian", sigma=0.1, copies=2, model="mlp", batch_size=40)


def interrupted(settings: dict[str, Any], root: Path) -> Path:
    interrupt(settings, root, steps=4)
    return root


def _edited(root: Path, name: str, **changes: Any) -> None:
    (root / name).write_text(json.dumps(json.loads((root / name).read_text()) | changes))


def test_a_run_keeps_its_passes_on_a_machine_that_would_choose_others(settings: dict[str, Any], tmp_path: Path) -> None:
    with threads(MANY):
        root = interrupted(settings, tmp_path / "run")
        whole = train(settings, tmp_path / "whole")
    other = interrupted(settings, tmp_path / "other")
    begun, chosen = (json.loads((folder / PASSES).read_text())["records"] for folder in (root, other))
    assert begun != chosen, "this machine chooses other passes"
    assert model_bytes(train(None, root, resume=True).root) == model_bytes(whole.root)
    assert not (root / PASSES).exists(), "nobody needs it any more"
    assert model_bytes(train(None, other, resume=True).root) != model_bytes(whole.root), "passes matter"


def test_a_planted_resume_with_passes_of_its_own_is_refused(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threads(MANY):
        root = interrupted(settings, tmp_path / "run")
    before = (root / PASSES).read_bytes()
    monkeypatch.setattr(train_module, "kept_to", lambda config, device, passes: config)
    with pytest.raises(RunError, match=r"other passes than it was begun with(.|\n)*where: records"):
        train(None, root, resume=True)
    assert (root / PASSES).read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ranks_keep_the_passes_of_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    with threads(MANY):
        root = interrupted(settings, tmp_path / "run")
        whole = train(settings, tmp_path / "whole")
    with quick_to_part():
        ends = run_ranks(2, lambda ranks: str(train(None, root, resume=True, ranks=ranks).root))
    assert [ended.error for ended in ends] == [None, None]
    assert model_bytes(root) == model_bytes(whole.root), "the grid of the noise rounds the order of additions away"


def test_another_arithmetic_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    root = interrupted(settings, tmp_path / "run")
    _edited(root, PASSES, arithmetic="tf32")
    with pytest.raises(RunError, match=r"where: arithmetic(.|\n)*got: arithmetic float32(.|\n)*wanted: arithmetic tf32"):
        train(None, root, resume=True)


def test_a_run_of_a_gpu_does_not_go_on_without_one(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = interrupted(settings, tmp_path / "run")
    _edited(root, "run.json", device="cuda: a GPU")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RunError, match=r"another kind of device(.|\n)*cuda: a GPU"):
        train(None, root, resume=True)


def test_a_run_of_a_cpu_stays_there_beside_a_gpu(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = interrupted(settings, tmp_path / "run")
    config = ResolvedConfig(**run_json(root)["config"])
    free = config.model_copy(update={"performance": config.performance.model_copy(update={"device": "auto"})})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    kept = kept_to(free, run_json(root)["device"], PassesOfRun(records=5, arithmetic="float32"))
    assert (kept.performance.device, kept.performance.physical_batch) == ("cpu", 5)
    assert kept_to(free, "cuda: a GPU, 2 ranks", None).performance.device == "cuda"
    with pytest.raises(RunError, match="device of this run is not known"):
        kept_to(free, "abacus", None)


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"records": 0, "arithmetic": "float32"}', '{"records": 3, "x": 1}'])
def test_a_broken_file_is_refused(settings: dict[str, Any], tmp_path: Path, content: str) -> None:
    root = interrupted(settings, tmp_path / "run")
    (root / PASSES).write_text(content)
    with pytest.raises(RunError, match=r"passes(\.json is broken| cannot be read)"):
        train(None, root, resume=True)


def test_a_run_from_before_the_file_goes_on(settings: dict[str, Any], tmp_path: Path) -> None:
    root = interrupted(settings, tmp_path / "run")
    (root / PASSES).unlink()
    assert train(None, root, resume=True).record["state"] == "complete"
    refuse_other_passes(None, PassesOfRun(records=3, arithmetic="float32"))
