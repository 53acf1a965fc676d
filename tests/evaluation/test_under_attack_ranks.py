"""Ranks that share out the inputs under attack find what one process finds, to the byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import twinproof as tp
from interruption import StopAfter
from rank_processes import run_ranks
from twinproof.certification.method import Sampling
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset
from twinproof.evaluation import under_attack
from twinproof.evaluation.protocols import AttackPlan
from twinproof.keys import Key
from twinproof.progress import Progress
from twinproof.runs.run import Run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INPUTS = 21
FILES = ("attacks/l2/attacks.csv", "attacks/l2/attacks.safetensors")


def attacked(root: Path, dataset: Dataset, progress: Progress | None = None) -> Callable[[Ranks], int]:
    def work(ranks: Ranks) -> int:
        made = tp.attack(
            Run.open(root),
            dataset,
            plan=AttackPlan(norm="l2", sizes=(0.5,), attacks=("fgsm", "pgd"), steps=2, draws=2),
            sampling=Sampling(10, 50, 0.01),
            limit=INPUTS,
            device="cpu",
            key=Key.from_seed(3),
            progress=progress,
            ranks=ranks,
        )
        return len(made.lines)

    return work


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_attack, "_INPUTS_PER_BATCH", 5)
    monkeypatch.setattr(under_attack, "default_batch", lambda device: 8)


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    one, many = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("one", "many"))
    return one, many


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_ranks_finds_the_same(world: int, runs: tuple[Path, Path], dataset: Dataset) -> None:
    one, many = runs
    lines = attacked(one, dataset)(ALONE)
    assert [ended.value for ended in run_ranks(world, attacked(many, dataset))] == [lines] * world
    assert all((one / name).read_bytes() == (many / name).read_bytes() for name in FILES)
    assert tp.verify(many).problems == ()
    # Once complete, all ranks read the record.
    assert [ended.value for ended in run_ranks(2, attacked(many, dataset))] == [lines] * 2


@pytest.mark.parametrize("batches", [2, 14])
def test_ranks_go_on_where_one_process_stopped(batches: int, runs: tuple[Path, Path], dataset: Dataset) -> None:
    one, many = runs
    lines = attacked(one, dataset)(ALONE)
    with pytest.raises(KeyboardInterrupt):
        attacked(many, dataset, StopAfter(batches))(ALONE)
    assert [ended.value for ended in run_ranks(2, attacked(many, dataset))] == [lines] * 2
    assert all((one / name).read_bytes() == (many / name).read_bytes() for name in FILES)
