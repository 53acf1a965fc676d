"""A user's own table from the file to the released run, and feature ranges that are paid for exactly once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from small_runs import blobs, ledger_lines, run_json, tiny, write_blobs

from twinproof.auditing.verify import verify_run
from twinproof.data import assemble
from twinproof.data.scaling import private_scaling
from twinproof.errors import ConfigError, RunError
from twinproof.guarantee import Status
from twinproof.recipes import train as train_module
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data

RANGES_NOISE = 15.0
HEADER = "age,weight,dose,pulse,outcome"


def write_patients(folder: Path) -> Path:
    """The clusters as a table; rows enough that ranges stand out of their noise."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = blobs()
    inputs = np.concatenate([arrays["x_train"], arrays["x_test"]] * 20)
    inputs = inputs + np.random.default_rng(1).uniform(0, 0.01, inputs.shape)
    labels = np.concatenate([arrays["y_train"], arrays["y_test"]] * 20)
    rows = [",".join([*(f"{value:.6f}" for value in x), "abc"[y]]) for x, y in zip(inputs, labels, strict=True)]
    path = folder / "patients.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def patients(path: Path, ranges: Any, **changes: Any) -> dict[str, Any]:
    data = {"source": str(path), "label": "outcome", "ranges": ranges, "ranges_noise": RANGES_NOISE, "public_fraction": 0.2}
    return tiny(path, data=data, batch_size=200, **changes)


def epsilon_by_hand(gaussians: Sequence[float], sampled: tuple[float, float, int], delta: float) -> float:
    """Epsilon of Gaussian mechanisms and sampled steps together, straight from dp-accounting."""
    rate, noise, steps = sampled
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    events = [dp_accounting.GaussianDpEvent(value) for value in gaussians]
    accountant = pld_privacy_accountant.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.ComposedDpEvent([*events, dp_accounting.SelfComposedDpEvent(step, steps)]))
    return float(accountant.get_epsilon(delta))


def _truth(run: Run, gaussians: Sequence[float]) -> float:
    privacy = run.record["privacy"]
    return epsilon_by_hand(gaussians, (privacy["sample_rate"], privacy["noise_multiplier"], privacy["steps"]), privacy["delta"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_patients(tmp_path / "ward-seven")


def test_a_table_becomes_a_run_that_shows_only_its_file_name(table: Path, tmp_path: Path) -> None:
    run = train(patients(table, "test"), tmp_path / "run")
    assert run.record["config"]["data"]["source"] == run.record["data"]["name"] == "patients.csv"
    assert run.record["data"]["feature_names"] == ["age", "weight", "dose", "pulse"]
    assert run.record["data"]["classes"] == ["a", "b", "c"]
    for path in run.root.iterdir():
        assert path.is_dir() or b"ward-seven" not in path.read_bytes(), path.name
    assert verify_run(run.root).ok
    assert len(load_run_data(run).test) == run.record["data"]["test_records"]


@pytest.mark.parametrize("ranges", ["test", {"*": [0, 2]}])
def test_free_ranges_cost_nothing(table: Path, tmp_path: Path, ranges: Any) -> None:
    run = train(patients(table, ranges), tmp_path / "run")
    assert "gaussian" not in [line["kind"] for line in ledger_lines(run.root)]
    assert run.epsilon == pytest.approx(_truth(run, []), abs=2e-6)


@pytest.mark.parametrize("noise", [{"noise_multiplier": 20.0}, {"noise_multiplier": None, "epsilon": 0.3}], ids=str)
def test_private_ranges_are_in_the_ledger_and_in_epsilon(table: Path, tmp_path: Path, noise: dict[str, Any]) -> None:
    run = train(patients(table, "private", seed=None, **noise), tmp_path / "run")
    second = ledger_lines(run.root)[1]
    assert (second["kind"], second["body"]["noise_multiplier"]) == ("gaussian", RANGES_NOISE)
    assert run.epsilon == pytest.approx(_truth(run, [RANGES_NOISE]), abs=2e-6)
    assert run.epsilon is not None
    assert run.epsilon > _truth(run, []) + 0.01, "the price of the ranges shows"
    assert run.epsilon <= (noise.get("epsilon") or np.inf)
    assert run.guarantee.status is Status.PROVEN
    assert json.loads(run.layout.metrics.read_text().splitlines()[-1])["epsilon"] == run.epsilon
    assert run.record["data"]["scaling"]["source"] == "private"
    assert verify_run(run.root).ok


def test_planted_ranges_for_free_are_caught(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "spent_on_data", lambda dataset: [])
    run = train(patients(table, "private"), tmp_path / "run")
    assert run.epsilon is not None
    assert run.epsilon < _truth(run, [RANGES_NOISE]) - 0.01
    assert any("no event of the ledger pays" in problem.what for problem in verify_run(run.root).problems)


def test_a_target_below_the_price_of_the_ranges_is_refused(table: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        train(patients(table, "private", noise_multiplier=None, epsilon=0.01), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resuming_and_loading_again_do_not_spend_again(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimates: list[float] = []

    def counted(values: Any, names: Any, noise: float, key: Any) -> Any:
        estimates.append(noise)
        return private_scaling(values, names, noise, key)

    monkeypatch.setattr(assemble, "private_scaling", counted)
    interrupt(patients(table, "private"), tmp_path / "run", steps=3)
    bounds = run_json(tmp_path / "run")["data"]["scaling"]
    run = train(patients(table, "private"), tmp_path / "run", resume=True)
    again = load_run_data(run)
    assert estimates == [RANGES_NOISE]
    assert [line["kind"] for line in ledger_lines(run.root)].count("gaussian") == 1
    assert again.scaling is not None
    assert again.scaling.as_dict() == bounds == run.record["data"]["scaling"]
    assert run.epsilon == pytest.approx(_truth(run, [RANGES_NOISE]), abs=2e-6)


def test_a_run_whose_data_moved_is_told_where(table: Path, tmp_path: Path) -> None:
    run = train(patients(table, "test"), tmp_path / "run")
    moved = write_patients(tmp_path / "elsewhere")
    table.unlink()
    assert len(load_run_data(run, source=str(moved)).train) > 0
    other = write_blobs(tmp_path / "other")
    with pytest.raises((RunError, ConfigError)):
        load_run_data(run, source=str(other))
