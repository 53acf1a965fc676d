"""``twinproof reproduce`` and its results files."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_smoothing import certified, falling, measured_in_full

import twinproof as tp
from twinproof.certification.method import Method, find_certification
from twinproof.data.load import load
from twinproof.errors import DataError
from twinproof.keys import Key
from twinproof.runs.layout import software_versions
from twinproof.runs.run import Run
from twinproof_papers import making as measuring
from twinproof_papers.catalogue import EXPERIMENTS
from twinproof_papers.cell import CELLS, Cell, CellStore, Measured
from twinproof_papers.experiment import Options
from twinproof_papers.making import make_cells
from twinproof_papers.methods import MNIST, cells_of
from twinproof_papers.reproduce import PAGE, PICTURE, REPRODUCTIONS, Reproduced, reproduce
from twinproof_papers.results_file import FILE, Record, common, merged, read_cells, results_record, results_text, without
from twinproof_papers.results_file import FILE as RESULTS
from twinproof_papers.under_attack import Rereading


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


EFFORT = Options(seeds=1, limit=12, epochs=1, quick=True, device="cpu")


@dataclass(frozen=True)
class Made:
    out: Path
    result: Reproduced


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    out = tmp_path_factory.mktemp("reproduced")
    return Made(out, reproduce("hgm-fig3", out, EFFORT))


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing was to be made")


def test_everything_is_written(made: Made) -> None:
    record = json.loads((made.out / "hgm-fig3" / RESULTS).read_text())
    assert record["command"] == "twinproof reproduce hgm-fig3 --seeds 1 --limit 12 --epochs 1 --quick"
    assert {"device", "versions", "date", "tests", "comparison", "paper_settings"} <= set(record)
    assert [cell["method"] for cell in record["cells"]] == ["hgm-pixeldp", "pixeldp"]
    (row,) = record["comparison"]
    assert row["published"]["value"] == 4.17
    assert row["difference"] == pytest.approx(row["ours"]["mean"] - 4.17)
    assert row["ours"]["low"] is None, "one repetition has no interval"
    assert record["comparable"] is False
    assert record == json.loads(json.dumps(made.result.results)), "the file says what the call returns"
    (call,) = record["made_in"]
    assert (call["experiment"], call["cells"], call["cells_here"], call["processes"]) == ("hgm-fig3", 2, 2, 1)
    assert call["seconds"] >= max(cell["made"]["seconds"] for cell in record["cells"]) - 0.1
    assert record["panels"] == [], "the cells have what is plotted"
    assert "not comparable with the paper" in (made.out / "hgm-fig3" / PAGE).read_text()
    assert str(made.out) not in json.dumps(record), "a path of this machine says nothing elsewhere"
    assert (made.out / "hgm-fig3" / PICTURE).read_text().startswith("<?xml")
    assert "| hgm-pixeldp over pixeldp" in (made.out / "hgm-fig3" / PAGE).read_text()


@pytest.mark.parametrize("bound", ["hgm", "pixeldp", "published"])
def test_reading_votes_again_is_certifying_with_another_bound(made: Made, tmp_path: Path, bound: str) -> None:
    """Certified anew from the same key, and so the same draws, with the bound itself."""
    (cell,) = cells_of("hgm-pixeldp", MNIST, EFFORT)
    root = Path(shutil.copytree(CellStore(made.out / CELLS).run_folder(cell), tmp_path / "run"))
    found, digits = find_certification(root), load("digits")
    assert found is not None
    before, votes = found.settings, np.array([one.votes for one in found.certificates])
    read = Rereading.of(Run.open(root), digits, before).read(bound, votes, before.sampling.n, before.sampling.alpha).radii
    again = tp.certify(
        Run.open(root),
        digits,
        sampling=before.sampling,
        method=Method(norm="linf", bound=bound),
        limit=before.inputs,
        device="cpu",
        key=Key(bytes.fromhex(before.key)),
        name="again",
    )
    assert [one.votes for one in again.certificates] == votes.tolist()
    recorded = np.array([one.radius for one in again.certificates])
    assert np.abs(read - recorded).max() <= 2e-6


def test_finished_cells_are_kept(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure", _refuse)
    again = reproduce("hgm-fig3", made.out, EFFORT)
    assert again.results == made.result.results, "times and dates too"
    with pytest.raises(AssertionError, match="nothing was to be made"):
        reproduce("hgm-fig3", made.out, Options(seeds=1, limit=13, epochs=1, quick=True, device="cpu"))


def test_an_interrupted_cell_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    (cell,) = cells_of("dpsgd", MNIST, EFFORT, epsilon=4.0)
    store = CellStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("twinproof.evaluation.under_attack.attack", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_cells([cell], store, EFFORT)
    assert store.finished(cell) is None
    weights = Run.open(store.run_folder(cell)).model_sha256
    (done,) = make_cells([cell], store, EFFORT)
    assert Run.open(store.run_folder(cell)).model_sha256 == weights
    assert done.numbers["privacy_status"] == "proven", "repetitions have no known seed"
    assert 0 < done.numbers["epsilon"] <= 4.0
    assert "certified" not in done.numbers, "a network without noise has no certificate of this kind"
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "train", _refuse)
        with pytest.raises(AssertionError, match="nothing was to be made"):
            make_cells([cell], store, EFFORT, overwrite=True)
    assert store.finished(cell) is None


VALUES: tuple[Any, ...] = (None, True, 1, 1.0, 0, False, "a", [1, 2], [], {}, {"deep": 1}, {"deep": 2, "deeper": {}})


def _some(generator: random.Random, depth: int = 2) -> Record:
    names = generator.sample("abcde", generator.randint(0, 4))
    return {
        name: _some(generator, depth - 1) if depth and generator.random() < 0.4 else generator.choice(VALUES) for name in names
    }


def _exact(record: Record) -> str:
    """Where 1, 1.0 and True differ."""
    return json.dumps(record, sort_keys=True)


def test_nothing_is_lost() -> None:
    for seed in range(50):
        generator = random.Random(seed)
        base = _some(generator)
        records = [{**base, **_some(generator)} for _ in range(generator.randint(1, 5))]
        shared = common(records)
        assert [_exact(merged(shared, without(record, shared))) for record in records] == [_exact(one) for one in records]


@pytest.mark.parametrize(
    ("records", "shared"),
    [
        ([], {}),
        ([{"a": 1}], {"a": 1}),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], {"a": 1}),
        ([{"a": 1}, {"a": 1, "b": 3}], {"a": 1}),
        ([{"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}}], {"a": {"x": 1}}),
        ([{"a": {"x": 1}}, {"a": None}], {}),
        ([{"a": 1}, {"a": True}], {}),
        ([{"a": 1}, {"a": 1.0}], {}),
    ],
)
def test_only_what_all_have_is_shared(records: list[Record], shared: Record) -> None:
    assert _exact(common(records)) == _exact(shared)


MOST_BYTES = 300_000
THREE = Options(seeds=3)
OF_TABLE_2 = ("dpcert-fig7", "dpcert-fig15")


@pytest.fixture(scope="module")
def done() -> list[Measured]:
    """Table 2 with three repetitions, numbers as long as real ones."""
    generator = random.Random(3)

    def value(cell: Cell, measure: str, sigma: float, place: float) -> float:
        return round(min(1.0, falling(cell, measure, sigma, place) + 0.02 * generator.random()), 6 if measure == "acr" else 4)

    return [_as_made(one) for one in certified(REPRODUCTIONS["dpcert-table2"].cells(THREE), value)]


@pytest.fixture(scope="module")
def record(done: list[Measured]) -> dict[str, Any]:
    table = REPRODUCTIONS["dpcert-table2"]
    call = {"experiment": "dpcert-table2", "began": "", "processes": 14, "seconds": 1.0, "cells": 1, "cells_here": 1}
    return results_record(EXPERIMENTS["dpcert-table2"], THREE, table.findings(done), done, [call])


def _as_made(one: Measured) -> Measured:
    numbers = {**one.numbers, "epsilon": 2.999123, "accuracy": 0.9812, "privacy_status": "proven"}
    more = {"smoothed_accuracy": 0.9612, "abstained": 0.0123, "largest_radius": 0.799123, "seconds": 12.345}
    numbers["smoothed"] = {sigma: {**each, **more} for sigma, each in numbers["smoothed"].items()}
    made = {**one.made, "device": "cuda: NVIDIA H200", "versions": software_versions(), "training_seconds": 123.4}
    return Measured(one.cell, numbers, made)


def test_it_reads_back_and_is_small(record: dict[str, Any], done: list[Measured], tmp_path: Path) -> None:
    text = results_text(record)
    assert json.loads(text) == json.loads(json.dumps(record))
    assert len(text.encode()) < MOST_BYTES
    lines = text.splitlines()
    assert sum('"numbers": {' in line for line in lines) == len(record["cells"]) == 3 * (3 * 2 + 6 * 3 * 2)
    assert [line for line in lines if line.startswith('"')] == sorted(line for line in lines if line.startswith('"'))
    path = tmp_path / "dpcert-table2.json"
    path.write_text(text)
    whole = [json.loads(json.dumps(one.as_dict())) for one in done]
    assert read_cells(path) == whole
    planted = results_text({**record, "cells": whole})
    assert len(planted.encode()) > MOST_BYTES, "planted: every setting in every cell"


def test_settings_of_one_cell_are_never_anothers(record: dict[str, Any]) -> None:
    rates = {cell["training"].get("learning_rate") for cell in record["cells"]}
    assert "learning_rate" not in record["cells_share"]["training"]
    assert {0.5, 4.0} < rates
    assert set(record["cells_share"]["made"]) == {"device", "versions"}, "when and how long is told of each"
    assert all({"date", "seconds", "training_seconds"} == set(cell["made"]) for cell in record["cells"])


@pytest.mark.parametrize("kept_together", [False, True])
def test_figures_of_table_2_name_its_cells(
    record: dict[str, Any], done: list[Measured], tmp_path: Path, kept_together: bool
) -> None:
    def place(name: str) -> Path:
        path = tmp_path / f"{name}.json" if kept_together else tmp_path / name / FILE
        path.parent.mkdir(exist_ok=True)
        return path

    known = {one.cell.name: one for one in done}
    for name in OF_TABLE_2:
        figure = REPRODUCTIONS[name]
        used = [known[cell.name] for cell in figure.cells(THREE)]
        text = results_text(results_record(EXPERIMENTS[name], THREE, figure.findings(used), used, []))
        assert len(text) < 20_000
        place(name).write_text(text)
        with pytest.raises(DataError, match="no such file"):
            read_cells(place(name))
        if not kept_together:
            store = CellStore(tmp_path / "cells")
            for one in used:
                store.keep(one)
            assert read_cells(place(name)) == json.loads(json.dumps([one.as_dict() for one in used])), "the cells themselves"
            shutil.rmtree(store.root)
    place("dpcert-table2").write_text(results_text(record))
    for name in OF_TABLE_2:
        assert [cell["name"] for cell in read_cells(place(name))] == [cell.name for cell in REPRODUCTIONS[name].cells(THREE)]
    fewer = {**record, "cells": record["cells"][1:]}
    place("dpcert-table2").write_text(results_text(fewer))
    with pytest.raises(DataError, match="1 missing, the first regular-0"):
        read_cells(place("dpcert-fig7"))


def test_metrics_are_small() -> None:
    """With nine metrics at all sigmas over 10,000 images."""
    name = "dpcert-fig11"
    made = REPRODUCTIONS[name]
    cells = measured_in_full(made.cells(THREE))
    written = results_record(EXPERIMENTS[name], THREE, made.findings(cells), cells, [])
    assert len(results_text(written).encode()) < MOST_BYTES
    planted = results_text({**written, "cells": [one.as_dict() for one in cells]})
    assert len(planted.encode()) > 5 * MOST_BYTES, "planted: everything that the cells hold"


@pytest.mark.parametrize("number", [6, 19])
def test_metrics_are_written_once(number: int) -> None:
    made = REPRODUCTIONS[f"dpcert-fig{number}"]
    cells = certified(made.cells(THREE), falling)
    written = results_record(EXPERIMENTS[f"dpcert-fig{number}"], THREE, made.findings(cells), cells, [])
    assert written["cells_in"] == "dpcert-fig5"
    assert set(written["cells"]) == {cell.name for cell in REPRODUCTIONS["dpcert-fig5"].cells(THREE)}


def test_points_are_kept_where_nothing_else_has_them(record: dict[str, Any]) -> None:
    assert record["panels"] == []
    curves = REPRODUCTIONS["hgm-fig1"]
    computed = results_record(EXPERIMENTS["hgm-fig1"], Options(), curves.findings([]), [], [])
    assert computed["panels"][0]["lines"][0]["points"]
    assert computed["made_in"] == []
    assert json.loads(results_text(computed))["cells"] == []
