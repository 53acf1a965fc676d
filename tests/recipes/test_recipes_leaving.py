"""What may leave: outside ``private/`` nothing depends on the training records except through the plan.

With a learning rate of zero the plan lets nothing through, so that two data sets must give the same released files, byte for
byte but for the documented times. Each planted leak is caught by the same comparison.
"""

from __future__ import annotations

import getpass
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from recipe_fixtures import on_one_thread as on_one_thread
from small_runs import RECORDS, blobs, ledger_lines, released, run_json, tiny, with_other_record, without_record
from small_runs import write_blobs as write

from twinproof.data.record import Dataset
from twinproof.recipes import config as stored_data
from twinproof.recipes import train as train_module
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.finish import Reporter
from twinproof.recipes.train import train
from twinproof.training.sources import StepDiagnostics

Arrays = dict[str, NDArray[Any]]
NEIGHBOURS = {"removed": without_record(7), "last removed": without_record(RECORDS - 1), "replaced": with_other_record(7)}


def train_on(folder: Path, arrays: Arrays, **changes: Any) -> Path:
    return train(tiny(write(folder / "data", arrays), records=RECORDS, **changes), folder / "run").root


def differing_files(tmp_path: Path, other: Arrays, **changes: Any) -> list[str]:
    """Names of released files that tell the base data set from its neighbour."""
    left = released(train_on(tmp_path / "base", blobs(), **changes))
    right = released(train_on(tmp_path / "other", other, **changes))
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("recipe", ["dpsgd", "dpcert-gaussian", "securesgd"])
def test_released_files_do_not_tell_neighbours_apart(tmp_path: Path, neighbour: str, recipe: str) -> None:
    assert differing_files(tmp_path, NEIGHBOURS[neighbour], recipe=recipe, learning_rate=0) == []


def test_private_files_do_tell_them_apart(tmp_path: Path) -> None:
    """The comparison above is not between equal things: the owner's diagnostics differ."""
    base, other = (
        train_on(tmp_path / str(i), arrays, learning_rate=0) for i, arrays in enumerate((blobs(), without_record(7)))
    )
    assert (base / "private/diagnostics.jsonl").read_text() != (other / "private/diagnostics.jsonl").read_text()


def _described(self: Dataset, leak: dict[str, Any]) -> dict[str, Any]:
    return honest_description(self) | leak


def _plain_digest(self: Dataset) -> dict[str, Any]:
    return _described(self, {"train_sha256": hashlib.sha256(self.train.inputs.tobytes()).hexdigest()})


def _class_counts(self: Dataset) -> dict[str, Any]:
    return _described(self, {"class_counts": np.bincount(self.train.labels).tolist()})


def _largest_value(self: Dataset) -> dict[str, Any]:
    return _described(self, {"mean": float(self.train.inputs.mean())})


honest_description = Dataset.public_description


@pytest.mark.parametrize("leak", [_plain_digest, _class_counts, _largest_value])
def test_a_planted_fact_about_the_training_set_in_run_json_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: Any
) -> None:
    monkeypatch.setattr(Dataset, "public_description", leak)
    assert "run.json" in differing_files(tmp_path, NEIGHBOURS["replaced"], learning_rate=0)


class ReportsTraining(Reporter):
    """The planted bug: progress is measured on the training records."""

    def __init__(self, layout: Any, config: ResolvedConfig, dataset: Dataset, device: Any) -> None:
        exchanged = Dataset(
            dataset.name,
            dataset.kind,
            dataset.test,
            dataset.train,
            dataset.classes,
            dataset.levels,
            dataset.feature_names,
            dataset.scaling,
        )
        super().__init__(layout, config, exchanged, device)


class ReportsClipping(Reporter):
    """The planted bug: how many gradients were clipped is released."""

    def diagnose(self, seen: StepDiagnostics) -> None:
        super().diagnose(seen)
        with open(self._layout.metrics, "a", encoding="utf-8") as handle:
            handle.write(json.dumps({"step": seen.step, "drawn": seen.drawn}) + "\n")


@pytest.mark.parametrize("reporter", [ReportsTraining, ReportsClipping])
def test_a_planted_training_figure_in_the_metrics_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reporter: type[Reporter]
) -> None:
    monkeypatch.setattr(train_module, "Reporter", reporter)
    assert "metrics.jsonl" in differing_files(tmp_path, NEIGHBOURS["removed"], learning_rate=0)


def _masked(root: Path) -> dict[str, Any]:
    """Released JSON without what the plan lets through: weights, their digests, and how they do on the test set."""
    record = json.loads(released(root)["run.json"])
    record.pop("accuracy")
    for name in ("model.safetensors", "ledger.jsonl", "metrics.jsonl"):
        record["files"].pop(name)
    metrics = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        del line["test_accuracy"], line["test_loss"]
    ledger = ledger_lines(root)
    del ledger[-1]["hash"], ledger[-1]["body"]["model_sha256"]
    return {"run": record, "metrics": metrics, "ledger": ledger, "names": sorted(released(root))}


WAYS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "learned r": {"recipe": "securesgd"},
    "private r": {"recipe": "securesgd", "noise_layer": {"redistribution": "training"}},
}


@pytest.mark.parametrize("way", WAYS)
def test_training_changes_only_the_model_and_what_is_computed_from_it(tmp_path: Path, way: str) -> None:
    base = train_on(tmp_path / "base", blobs(), **WAYS[way])
    other = train_on(tmp_path / "other", with_other_record(7), **WAYS[way])
    assert (base / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    assert _masked(base) == _masked(other)


def _mentions(root: Path, words: list[str]) -> list[str]:
    files = [path for path in root.iterdir() if path.is_file()]
    return [f"{word} in {path.name}" for path in files for word in words if word.encode() in path.read_bytes()]


def _private_words(folder: Path) -> list[str]:
    return [str(folder), folder.name, str(Path.home()) + "/", *([] if len(getpass.getuser()) < 5 else [getpass.getuser()])]


def test_no_path_of_the_owners_machine_is_released(tmp_path: Path) -> None:
    root = train_on(tmp_path / "ward-seven", blobs())
    assert _mentions(root, _private_words(tmp_path / "ward-seven")) == []
    assert run_json(root)["config"]["data"]["source"] == run_json(root)["data"]["name"] == "blobs.npz"


def test_a_planted_path_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_data, "_last_part", lambda path: path)
    root = train_on(tmp_path / "ward-seven", blobs())
    assert "ward-seven in run.json" in _mentions(root, _private_words(tmp_path / "ward-seven"))
