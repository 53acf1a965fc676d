"""Settings that only change speed change no plan, no promise and no ledger, and weights by rounding alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import ledger_lines, run_json, tiny

from twinproof.data.load import load
from twinproof.guarantee import Status
from twinproof.privacy.accounting import Spending
from twinproof.recipes.config import TrainConfig, parse_train_config
from twinproof.recipes.finish import privacy_guarantee
from twinproof.recipes.resolve import plan_of, resolve
from twinproof.recipes.train import train
from twinproof.training.passes import DeviceRecords, Pass, Performance

PERFORMANCES = st.fixed_dictionaries(
    {
        "device": st.sampled_from(["auto", "cpu", "cuda"]),
        "physical_batch": st.none() | st.integers(1, 10_000),
        "path": st.sampled_from(["auto", "fast", "vmap"]),
        "checkpoint_every": st.integers(1, 10_000),
        "report_every": st.none() | st.integers(1, 10_000),
    }
)


@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(performance=PERFORMANCES)
def test_no_performance_setting_changes_the_plan(source: Path, performance: dict[str, Any]) -> None:
    plain = tiny(source, seed=None)
    dataset = load(parse_train_config(plain).data)
    one, other = (
        resolve(parse_train_config(plain | {"performance": given}), dataset) for given in ({"device": "cpu"}, performance)
    )
    assert plan_of(one) == plan_of(other)
    spent = Spending(1.0, 1.1, one.delta)
    assert privacy_guarantee(one, dataset, spent) == privacy_guarantee(other, dataset, spent)
    assert privacy_guarantee(one, dataset, spent).status is Status.PROVEN
    assert one.model_dump(exclude={"performance"}) == other.model_dump(exclude={"performance"})
    assert not set(Performance.model_fields) & set(TrainConfig.model_fields), "one setting, one place"


def _promises(root: Path) -> dict[str, Any]:
    record = run_json(root)
    closing = ledger_lines(root)[-1]["body"]
    spent = [line["body"] for line in ledger_lines(root)[1:-1]]
    return {
        "privacy": record["privacy"],
        "guarantees": record["guarantees"],
        "closing": {key: closing[key] for key in ("steps", "epsilon", "epsilon_rdp")},
        "spent": spent,
    }


def _weights(root: Path) -> dict[str, torch.Tensor]:
    return load_file(root / "model.safetensors")


def _close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-5, atol=1e-6) for name in one)


WAYS: list[dict[str, Any]] = [
    {"physical_batch": 1},
    {"physical_batch": 7},
    {"physical_batch": 64},
    {"path": "fast", "checkpoint_every": 5},
    {"path": "vmap", "report_every": 1},
    {"path": "vmap", "physical_batch": 7},
]
# No noisy copies, whose draws follow the passes. The noise of the steps is the same in all of them: a wrong sum shows.
SHARP = {"learning_rate": 1.0, "clip_norm": 1.0, "batch_size": 30}


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny(source, **SHARP), tmp_path_factory.mktemp("reference") / "run").root


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_gives_the_same_promises_and_weights(
    source: Path, reference: Path, tmp_path: Path, way: dict[str, Any]
) -> None:
    root = train(tiny(source, **SHARP, performance={"device": "cpu", **way}), tmp_path / "run").root
    assert _promises(root) == _promises(reference)
    assert _close(_weights(root), _weights(reference))


def _drops_the_rest(self: DeviceRecords, indices: Any, size: int) -> Iterator[Pass]:
    return honest_passes(self, indices[: len(indices) // size * size], size)


def _repeats_the_last(self: DeviceRecords, indices: Any, size: int) -> Iterator[Pass]:
    missing = -len(indices) % size
    return honest_passes(self, torch.cat([indices, indices[:missing]]), size)


honest_passes = DeviceRecords.passes


@pytest.mark.parametrize("wrong", [_drops_the_rest, _repeats_the_last])
def test_planted_wrong_passes_are_caught(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.setattr(DeviceRecords, "passes", wrong)
    root = train(tiny(source, **SHARP, performance={"device": "cpu", "physical_batch": 7}), tmp_path / "run").root
    assert not _close(_weights(root), _weights(reference))


@pytest.mark.parametrize("rows", [3, 50])
def test_noisy_copies_change_no_promise_either(source: Path, tmp_path: Path, rows: int) -> None:
    plain = train(tiny(source, recipe="dpcert-gaussian"), tmp_path / "plain").root
    other = train(
        tiny(source, recipe="dpcert-gaussian", performance={"device": "cpu", "physical_batch": rows}), tmp_path / "other"
    ).root
    assert _promises(plain) == _promises(other)
