"""Which records become public, and by whose word: the test part, rare classes, equal records, the number of records."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from recipe_fixtures import on_one_thread as on_one_thread
from small_runs import RECORDS, blobs, ledger_lines, model_bytes, released, run_json, tiny, write_blobs

from twinproof.auditing.verify import verify_run
from twinproof.data import from_arrays
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, DataError
from twinproof.recipes.resolve import OverlapWarning, check_test_part
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data

Arrays = dict[str, NDArray[Any]]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"


def _train_on(folder: Path, arrays: Arrays, **changes: Any) -> Path:
    return train(tiny(write_blobs(folder / "data", arrays), **changes), folder / "run").root


def _without_last_class(kept: int) -> Arrays:
    """The clusters with ``kept`` training records of the last class."""
    arrays = blobs()
    last = np.flatnonzero(arrays["y_train"] == 2)[kept:]
    return arrays | {name: np.delete(arrays[name], last, axis=0) for name in ("x_train", "y_train")}


def _kind(value: Any) -> Any:
    """A JSON value without its numbers and digests: keys, types, and all other text."""
    if isinstance(value, dict):
        return {key: _kind(inner) for key, inner in value.items() if key != "created"}
    if isinstance(value, list):
        return [_kind(inner) for inner in value]
    return type(value).__name__ if isinstance(value, float) or (isinstance(value, str) and len(value) == 64) else value


def test_a_rare_class_with_and_without_its_one_record_is_released_alike(tmp_path: Path) -> None:
    with_it, without = _without_last_class(1), _without_last_class(0)
    roots = [
        _train_on(tmp_path / name, arrays, records=len(with_it["y_train"]))
        for name, arrays in (("with", with_it), ("without", without))
    ]
    assert all(verify_run(root).ok for root in roots)
    assert sorted(released(roots[0])) == sorted(released(roots[1]))
    assert run_json(roots[0])["data"] == run_json(roots[1])["data"]
    kinds = []
    for root in roots:
        record = {key: value for key, value in run_json(root).items() if key != "accuracy"}
        kinds.append((_kind(record), _kind(ledger_lines(root))))
    assert kinds[0] == kinds[1]


def test_a_training_label_outside_the_classes_ends_before_anything_is_written(tmp_path: Path) -> None:
    arrays = blobs()
    arrays["y_train"][5] = 7
    with pytest.raises(DataError, match="does not fit the classes"):
        _train_on(tmp_path, arrays)
    assert not (tmp_path / "run").exists()
    declared = {"source": str(write_blobs(tmp_path / "data", arrays)), "ranges": {"*": [0, 1]}, "classes": list("01234567")}
    with pytest.raises(DataError, match="a class has no test record"):
        train(tiny("x.npz", data=declared), tmp_path / "run")


def _one_part() -> Arrays:
    arrays = blobs()
    return {name: np.concatenate([arrays[f"{name}_train"], arrays[f"{name}_test"]]) for name in "xy"}


def test_own_data_are_not_divided_without_a_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody said which records may become public"):
        _train_on(tmp_path, _one_part())
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="nobody said which records may become public"):
        from_arrays("memory", _one_part(), ranges={"*": (0.0, 1.0)})
    dataset = from_arrays("memory", _one_part(), ranges={"*": (0.0, 1.0)}, public_fraction=0.3)
    data = {"source": str(write_blobs(tmp_path / "data", _one_part())), "ranges": {"*": [0, 1]}, "public_fraction": 0.3}
    run = train(tiny("x.npz", data=data), tmp_path / "run")
    assert run.record["data"]["test_records"] == len(dataset.test)
    assert run.record["data"]["records"] == len(dataset.train)
    assert run.record["config"]["data"]["public_fraction"] == 0.3
    assert len(load_run_data(run).test) == len(dataset.test)


def test_a_former_setting_is_refused_by_its_new_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="public_fraction") as caught:
        train(tiny("x.npz", data={"source": "x.npz", "test_fraction": 0.2}), tmp_path / "run")
    assert caught.value.where == "data.test_fraction"


def test_a_run_of_format_1_finds_its_data_again(tmp_path: Path) -> None:
    run = Run.open(Path(shutil.copytree(FIXTURES / "demo", tmp_path / "run")))
    assert "test_fraction" in run.record["config"]["data"]
    assert len(load_run_data(run).test) == run.record["data"]["test_records"]


def test_a_run_of_format_1_on_own_data_is_divided_as_it_was(tmp_path: Path) -> None:
    """Its settings name a share that nobody was asked for; where the data had a test part it meant nothing."""
    whole = write_blobs(tmp_path / "whole", _one_part())
    for path, public in ((whole, {"public_fraction": 0.2}), (write_blobs(tmp_path / "parts"), {})):
        data = {"source": str(path), "ranges": {"*": [0, 1]}, **public}
        run = train(tiny(path, data=data, steps=1), path.parent / "run")
        for file in (run.layout.run_json, run.layout.private / "source.json"):
            record = json.loads(file.read_text())
            settings = record["config"]["data"] if "config" in record else record.get("data", record)
            settings.pop("public_fraction")
            settings["test_fraction"] = 0.2
            file.write_text(json.dumps(record))
        again = Run.open(run.root)
        assert "public_fraction" not in again.record["config"]["data"]
        assert len(load_run_data(again).test) == again.record["data"]["test_records"]


def _with_test(train_part: Arrays, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    arrays = {"x_train": train_part["x_train"], "y_train": train_part["y_train"], "x_test": inputs, "y_test": labels}
    return from_arrays("memory", arrays, ranges={"*": (0.0, 1.0)})


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["same order", "other order"])
def test_test_records_that_are_the_training_records_are_refused(tmp_path: Path, order: slice) -> None:
    arrays = blobs()
    copied = arrays | {"x_test": arrays["x_train"][order], "y_test": arrays["y_train"][order]}
    with pytest.raises(DataError, match="the test records are the training records"):
        _train_on(tmp_path, copied)
    assert not (tmp_path / "run").exists()


def test_equal_records_are_told_to_the_owner_and_written_nowhere(tmp_path: Path) -> None:
    """With a learning rate of zero the plan lets nothing through: the released files are the same without equal records."""
    arrays = blobs()
    arrays["x_test"][3:7] = arrays["x_train"][:4]
    with pytest.warns(OverlapWarning, match="4 of 30 test records have the same input"):
        equal = _train_on(tmp_path / "equal", arrays, learning_rate=0)
    arrays["x_train"][:4] += 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apart = _train_on(tmp_path / "apart", arrays, learning_rate=0)
    assert released(equal) == released(apart)


def test_a_coarse_table_may_have_the_same_inputs_on_both_sides() -> None:
    inputs = np.array([[0.0], [1.0]] * 20)
    labels = np.arange(40) % 2
    coarse = {"x_train": inputs[:30], "y_train": labels[:30], "x_test": inputs[30:], "y_test": labels[30:]}
    with pytest.warns(OverlapWarning, match="10 of 10"):
        check_test_part(from_arrays("coarse", coarse, ranges={"*": (0.0, 1.0)}))


def test_a_planted_copy_of_one_record_is_seen() -> None:
    arrays = blobs()
    clean = _with_test(arrays, arrays["x_test"], arrays["y_test"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_test_part(clean)
    arrays["x_test"][29] = arrays["x_train"][89]
    with pytest.warns(OverlapWarning, match="1 of 30"):
        check_test_part(_with_test(arrays, arrays["x_test"], arrays["y_test"]))


def test_fewer_records_than_declared_change_nothing_but_the_weights(tmp_path: Path) -> None:
    """Neighbours: one record replaced by nothing. Declared, their number is the same, and so is everything that follows."""
    arrays = blobs()
    fewer = arrays | {name: arrays[name][:-1] for name in ("x_train", "y_train")}
    roots = [_train_on(tmp_path / name, given, records=RECORDS) for name, given in (("all", arrays), ("fewer", fewer))]
    one, other = (run_json(root) for root in roots)
    assert one["privacy"] == other["privacy"]
    for record in (one, other):
        for key in ("created", "files", "accuracy"):
            record.pop(key)
    assert one == other
    lines = [[line["body"] for line in ledger_lines(root)] for root in roots]
    for body in (lines[0][-1], lines[1][-1]):
        body.pop("model_sha256")
    assert lines[0] == lines[1]
    assert [line.keys() for line in _metrics(roots[0])] == [line.keys() for line in _metrics(roots[1])]
    assert [line["epsilon"] for line in _metrics(roots[0])] == [line["epsilon"] for line in _metrics(roots[1])]
    assert model_bytes(roots[0]) != model_bytes(roots[1]), "the comparison is not between equal things"


def _metrics(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]


def test_without_a_declaration_the_exact_number_is_released(tmp_path: Path) -> None:
    """What the card calls public: the number of records, and the rate that follows from it."""
    arrays = blobs()
    fewer = arrays | {name: arrays[name][:-1] for name in ("x_train", "y_train")}
    one, other = (run_json(_train_on(tmp_path / str(len(given["y_train"])), given)) for given in (arrays, fewer))
    assert (one["data"]["records"], other["data"]["records"]) == (RECORDS, RECORDS - 1)
    assert one["privacy"]["sample_rate"] != other["privacy"]["sample_rate"]


def test_more_records_than_declared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more training records than declared"):
        _train_on(tmp_path, blobs(), records=RECORDS - 1)
    assert not (tmp_path / "run").exists()
