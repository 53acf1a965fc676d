"""From nothing to results on embedded data; finished cells are kept, interrupted ones go on, and what cannot run says why."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinproof as tp
from twinproof.certification.method import Method
from twinproof.certification.record import find_certification
from twinproof.data.load import load
from twinproof.errors import ConfigError, DataError, RunError
from twinproof.keys import Key
from twinproof.papers import attacked_numbers
from twinproof.papers import measure as measuring
from twinproof.papers.cell_store import CELLS, CellStore
from twinproof.papers.effort import Effort
from twinproof.papers.making import make_cells
from twinproof.papers.methods import MNIST, cells_of
from twinproof.papers.reproduce import PAGE, PICTURE, Reproduced, reproduce
from twinproof.papers.rereading import Rereading
from twinproof.papers.results_file import FILE as RESULTS
from twinproof.runs.run import Run

EFFORT = Effort(seeds=1, limit=12, epochs=1, quick=True, device="cpu")


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


def test_cells_are_runs_that_anyone_can_open(made: Made) -> None:
    for cell in cells_of("pixeldp", MNIST, EFFORT):
        folder = CellStore(made.out / CELLS).run_folder(cell)
        run = Run.open(folder)
        assert run.record["config"]["seed"] is None
        assert run.record["config"]["noise_layer"]["norm"] == "linf"
        assert (folder / "attacks/linf/attacks.json").is_file()
        assert (folder / "certificates/linf/certificates.json").is_file()


def test_numbers_are_shares_and_fall_as_they_must(made: Made) -> None:
    for cell in made.result.results["cells"]:
        numbers = cell["numbers"]
        for bound, line in numbers["certified"].items():
            assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(line)), bound
            if bound != "published":
                assert all(low <= high for low, high in zip(line, numbers["certified"]["tight"], strict=True))
        for attack, shares in numbers["conventional"].items():
            there = numbers["certified_there"]["tight"][attack]
            assert all(certified <= share <= 1 for certified, share in zip(there, shares, strict=True))


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
        reproduce("hgm-fig3", made.out, Effort(seeds=1, limit=13, epochs=1, quick=True, device="cpu"))


def test_an_interrupted_cell_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    (cell,) = cells_of("dpsgd", MNIST, EFFORT, epsilon=4.0)
    store = CellStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(attacked_numbers.under_attack, "attack", interrupt)
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


def test_what_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    with pytest.raises(ConfigError, match="no reader"):
        reproduce("stobatch-fig9", tmp_path)
    with pytest.raises(DataError, match="mnist is not there"):
        reproduce("hgm-fig3", tmp_path)
    with pytest.raises(ConfigError, match="no rows to choose from"):
        reproduce("hgm-fig1", tmp_path, Effort(methods=("dpsgd",)))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="directory cannot be made"):
        reproduce("hgm-fig3", tmp_path / "file", Effort(quick=True))


def test_the_training_settings_are_accepted_for_every_method() -> None:
    from twinproof.recipes.config import parse_train_config
    from twinproof.recipes.resolve import resolve

    digits = load("digits")
    for method in ("pixeldp", "hgm-pixeldp"):
        (cell,) = cells_of(method, MNIST, EFFORT)
        assert resolve(parse_train_config(cell.training), digits).noise_layer is not None
    for method in ("securesgd", "securesgd-agm"):
        (cell,) = cells_of(method, MNIST, EFFORT, epsilon=0.2)
        assert parse_train_config(cell.training).epsilon == 0.2
