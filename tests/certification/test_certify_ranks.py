"""Ranks that share out the inputs make the certificates of one process, to the byte, and go on with each other's work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import twinproof as tp
from interruption import StopAfter
from rank_processes import quick_to_part, run_ranks
from twinproof.certification.method import Sampling
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset, Split
from twinproof.keys import Key
from twinproof.progress import Progress
from twinproof.runs.run import Run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INPUTS = 27  # not a multiple of the batches of 8 inputs
KEY = Key.from_seed(4)


def certified(
    root: Path,
    dataset: Dataset,
    *,
    target: float | None = None,
    key: Key | None = KEY,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Callable[[Ranks], int]:
    sampling = Sampling(10, 200, 0.01, target)
    named: dict[str, Any] = {"limit": INPUTS, "device": "cpu", "key": key, "progress": progress, "overwrite": overwrite}
    return lambda ranks: len(tp.certify(Run.open(root), dataset, sampling=sampling, ranks=ranks, **named).certificates)


@pytest.mark.parametrize(("world", "target"), [(2, None), (3, None), (2, 0.05)])
def test_any_number_of_ranks_makes_the_same_certificates(
    world: int, target: float | None, trained: Path, dataset: Dataset, tmp_path: Path
) -> None:
    one, many = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("one", "many"))
    certified(one, dataset, target=target)(ALONE)
    ends = run_ranks(world, certified(many, dataset, target=target))
    assert [ended.value for ended in ends] == [INPUTS] * world
    assert (many / "certificates/l2/certificates.csv").read_bytes() == (one / "certificates/l2/certificates.csv").read_bytes()
    assert tp.verify(many).problems == ()


def test_ranks_go_on_where_one_process_stopped(trained: Path, dataset: Dataset, tmp_path: Path) -> None:
    whole, run = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("whole", "run"))
    certified(whole, dataset)(ALONE)
    with pytest.raises(KeyboardInterrupt):
        certified(run, dataset, progress=StopAfter(2))(ALONE)
    # Without a key of its own rank 0 takes the earlier one up, and tells the others.
    assert [ended.value for ended in run_ranks(2, certified(run, dataset, key=None))] == [INPUTS] * 2
    assert (run / "certificates/l2/certificates.csv").read_bytes() == (whole / "certificates/l2/certificates.csv").read_bytes()
    assert [ended.value for ended in run_ranks(2, certified(run, dataset, key=None))] == [INPUTS] * 2


def test_a_rank_with_other_inputs_stops_everybody(trained: Path, dataset: Dataset, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    certified(run, dataset)(ALONE)
    before = {
        name: (run / name).read_bytes()
        for name in ("certificates/l2/certificates.csv", "certificates/l2/certificates.json", "run.json")
    }
    test = dataset.test
    changed = test.inputs.copy()
    changed[-1] = dataset.levels - changed[-1]
    other = Dataset(**{**vars(dataset), "test": Split(changed, test.labels)})

    def work(ranks: Ranks) -> int:
        return certified(run, other if ranks.rank == 1 else dataset, overwrite=True)(ranks)

    with quick_to_part():
        ends = run_ranks(2, work)
    assert ends[0].error is not None
    assert (ends[0].error["what"], ends[0].error["where"]) == ("the ranks do not agree on the test records", "rank 1")
    assert {name: (run / name).read_bytes() for name in before} == before, "what was refused has touched nothing"
