"""Cells on disk: found again under the very same settings, and under no others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synthetic_cells import attacked_by
from twinproof.errors import ConfigError, RunError
from twinproof.recipes.registry import RECIPES
from twinproof_papers.cell import Cell, CellStore, Measured
from twinproof_papers.methods import MNIST, cells_of
from twinproof_papers.options import Options, in_input_units, in_paper_scale
from twinproof_papers.under_attack import UnderAttack

MADE: dict[str, Any] = {"device": "cpu: test", "versions": {}, "date": "", "seconds": 1.0}
TRAINING: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "dpsgd", "epsilon": 1.0}
CELL = Cell("dpsgd", 0, TRAINING, UnderAttack(limit=10, certified=False))
OTHERS = [
    replace(CELL, repetition=1),
    replace(CELL, training={**TRAINING, "epsilon": 2.0}),
    replace(CELL, training={**TRAINING, "epochs": 3.0}),
    replace(CELL, measurement=UnderAttack(limit=11, certified=False)),
    replace(CELL, measurement=UnderAttack(limit=10, alpha=0.01, certified=False)),
]


def _kept(store: CellStore, cell: Cell = CELL) -> Path:
    store.keep(Measured(cell, {"clean": 0.5}, MADE))
    return store.root / cell.name / "cell.json"


def test_a_kept_cell_is_found_again(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    assert store.finished(CELL) is None
    _kept(store)
    found = store.finished(CELL)
    assert found is not None
    assert (found.cell, found.numbers) == (CELL, {"clean": 0.5})
    store.forget(CELL)
    assert store.finished(CELL) is None


def test_every_setting_changes_the_name(tmp_path: Path) -> None:
    assert len({cell.name for cell in (CELL, *OTHERS)}) == len(OTHERS) + 1
    _kept(CellStore(tmp_path))
    assert all(CellStore(tmp_path).finished(other) is None for other in OTHERS)


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_a_cell_made_under_other_settings_is_refused(tmp_path: Path, other: Cell) -> None:
    """Planted: a finished cell in the folder of another one, as a name that forgot a setting would bring about."""
    store = CellStore(tmp_path)
    path = _kept(store)
    planted = tmp_path / other.name
    shutil.copytree(path.parent, planted)
    trusting = json.loads((planted / "cell.json").read_text())["numbers"]  # what a store that trusts names would return
    assert trusting == {"clean": 0.5}
    with pytest.raises(RunError, match="other settings"):
        store.finished(other)


def test_a_recipe_that_changes_its_mind_makes_other_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the same words to ``train``, behind which a default has changed."""
    before = replace(CELL).name
    monkeypatch.setitem(RECIPES, "dpsgd", replace(RECIPES["dpsgd"], defaults={"copies": 0, "learning_rate": 0.123}))
    assert replace(CELL).name != before


def test_a_broken_cell_is_refused(tmp_path: Path) -> None:
    path = _kept(CellStore(tmp_path))
    for text in ("{", "{}", "[]", path.read_text().replace('"format": 1', '"format": 2')):
        path.write_text(text)
        with pytest.raises(RunError, match="not the one that is asked for"):
            CellStore(tmp_path).finished(CELL)


def test_figures_share_cells() -> None:
    one, other = (cells_of("securesgd", MNIST, Options(seeds=2), epsilon=0.5) for _ in range(2))
    assert [cell.name for cell in one] == [cell.name for cell in other]
    assert len({cell.digest for cell in one}) == 2
    on_gpu = cells_of("securesgd", MNIST, Options(seeds=2, device="cuda"), epsilon=0.5)
    assert [cell.name for cell in on_gpu] == [cell.name for cell in one], "a device changes speed, not settings"


def test_no_cell_has_a_seed_and_private_ones_have_a_budget() -> None:
    for method in ("pixeldp", "hgm-pixeldp", "securesgd", "securesgd-agm", "dpsgd"):
        (cell,) = cells_of(method, MNIST, Options(seeds=1), epsilon=0.5)
        assert "seed" not in cell.training, "a run with a known seed is not private"
        assert cell.training.get("epsilon") == (None if "pixeldp" in method else 0.5)
        assert attacked_by(cell).certified == (method != "dpsgd")


def test_sizes_of_papers_are_twice_ours() -> None:
    assert [in_paper_scale(size) for size in UnderAttack().sizes] == [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert in_input_units(0.2) == 0.1
    line = [in_paper_scale(size) for size in UnderAttack().line]
    assert set(line) >= {0.0, 0.05, 0.1, 0.2, 0.3, 0.6}


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"limit": 0}, {"epochs": 0.0}])
def test_efforts_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Options(**wrong)


def test_the_command_says_what_was_asked() -> None:
    options = Options(seeds=2, limit=50, epochs=1.5, quick=True, data_root=Path("somewhere"))
    assert options.command("hgm-fig3") == "twinproof reproduce hgm-fig3 --seeds 2 --limit 50 --epochs 1.5 --quick"
