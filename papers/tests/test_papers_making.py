"""Making cells: once each, whole repetitions first, failures that cost no other, shared out among ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from rank_processes import die, quick_to_part, run_ranks
from twinproof.compute.ranks import Ranks, Share, gone
from twinproof.data.record import Dataset
from twinproof.errors import RunError, SystemFault
from twinproof.runs.run import Run
from twinproof_papers import making
from twinproof_papers.cell import Basis, Cell, CellStore, Failure, Measured, Outcome, made_in
from twinproof_papers.experiment import Options
from twinproof_papers.making import by_run, make_cells

MADE: dict[str, Any] = {"device": "cpu: test", "versions": {}, "date": "", "seconds": 1.0}
TRAINING: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "regular", "epochs": 1, "model": "mlp"}


@dataclass(frozen=True)
class Looked:
    """A measurement that costs nothing; ``earlier`` is the one whose run it goes on with."""

    kind: str = "first"
    earlier: Looked | None = None

    @property
    def after(self) -> Basis | None:
        return self.earlier

    def is_whole(self, folder: Path) -> bool:
        return folder.is_dir()

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> dict[str, Any]:
        return {"clean": run.record["accuracy"]["value"]}

    def words(self) -> str:
        return "nothing"


def _cells(method: str, repetitions: int, **training: Any) -> list[Cell]:
    return [Cell(method, number, {**TRAINING, **training}, Looked()) for number in range(repetitions)]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which cells were begun, in order, where nothing is trained and methods called ``bad`` fail."""
    names: list[str] = []

    def fake(cell: Cell, store: CellStore, dataset: Dataset, *, device: str) -> Measured:
        names.append(f"{cell.method} {cell.repetition}")
        if cell.method.startswith("bad"):
            raise RuntimeError("out of memory")
        measured = Measured(cell, {"clean": 0.5}, MADE)
        store.keep(measured)
        return measured

    monkeypatch.setattr(making, "measure", fake)
    monkeypatch.setattr(making, "free_device_memory", lambda: None)  # a fifth of a second for each cell
    return names


def test_a_repetition_is_whole_before_the_next_begins(tmp_path: Path, begun: list[str]) -> None:
    """Planted: the order of methods, in which a call that is cut off has three repetitions of one row and none of another."""
    cells = [*_cells("one", 3), *_cells("two", 3, learning_rate=0.3)]
    done = make_cells(cells, CellStore(tmp_path), Options())
    assert begun == ["one 0", "two 0", "one 1", "two 1", "one 2", "two 2"]
    assert [one.cell for one in done] == cells, "the answer is in the order that was asked for"
    planted = [f"{cell.method} {cell.repetition}" for cell in cells]
    assert len({name.split()[0] for name in planted[: len(planted) // 2]}) == 1


def test_a_failed_cell_takes_no_other_with_it(tmp_path: Path, begun: list[str]) -> None:
    cells = [*_cells("bad", 1, learning_rate=0.1), *_cells("good", 2), *_cells("bad-too", 1, learning_rate=0.2)]
    store = CellStore(tmp_path)
    with pytest.raises(RunError, match="2 of 4 models could not be made") as raised:
        make_cells(cells, store, Options())
    assert all(cell.name in raised.value.where for cell in (cells[0], cells[3]))
    assert "RuntimeError: out of memory" in raised.value.got
    assert [store.finished(cell) is not None for cell in cells] == [False, True, True, False]
    del begun[:]
    with pytest.raises(RunError, match="2 of 2 models"):
        make_cells(cells, store, Options())
    assert begun == ["bad 0", "bad-too 0"], "only they are tried again"


def test_a_bug_is_not_taken_for_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr(making, "measure", broken)
    with pytest.raises(TypeError, match="a bug"):
        make_cells(_cells("one", 2), CellStore(tmp_path), Options())


def test_processes_keep_what_they_finished(tmp_path: Path) -> None:
    """For real: a child cannot be given a planted failure, so one cell has a batch that does not fit its data."""
    bad, good = _cells("bad", 1, batch_size=10**6), _cells("good", 1)
    store = CellStore(tmp_path)
    with pytest.raises(RunError, match="1 of 2 models") as raised:
        make_cells([*bad, *good], store, Options(processes=2, device="cpu"), name="table")
    assert raised.value.where == bad[0].name
    assert "ConfigError: the batch is larger than the data set" in raised.value.got
    assert store.finished(good[0]) is not None
    (call,) = made_in(store.root, good)
    assert (call["experiment"], call["processes"], call["cells"]) == ("table", 2, 1)


def test_a_process_that_was_ended_from_outside_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, store = _cells("one", 2), CellStore(tmp_path)

    class Killed:
        """A pool whose first answer came in time."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def submit(self, _: Any, cell: Cell, store: CellStore, options: Options) -> Future[Outcome]:
            answer: Future[Outcome] = Future()
            if cell.repetition == 0:
                store.keep(Measured(cell, {"clean": 0.5}, MADE))
                answer.set_result(Measured(cell, {"clean": 0.5}, MADE))
            else:
                answer.set_exception(BrokenProcessPool("killed"))
            return answer

        def shutdown(self, *, cancel_futures: bool) -> None:
            assert cancel_futures, "who interrupts does not wait for the whole table"

    monkeypatch.setattr(making, "ProcessPoolExecutor", Killed)
    with pytest.raises(RunError, match="ended from outside") as raised:
        make_cells(cells, store, Options(processes=2))
    assert raised.value.where == cells[1].name
    assert store.finished(cells[0]) is not None


@pytest.mark.parametrize(("error", "kind"), [(OSError(28, "No space left"), SystemFault), (MemoryError(), RunError)])
def test_a_full_disk_stops_all_cells_and_a_lack_of_memory_one(
    error: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def fail(cell: Cell, *_: object, **__: object) -> Measured:
        begun.append(cell.name)
        raise error

    monkeypatch.setattr(making, "measure", fail)
    with pytest.raises(kind):
        make_cells(_cells("good", 3), CellStore(tmp_path), Options(seeds=3))
    assert len(begun) == (1 if kind is SystemFault else 3)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
EFFORT = Options(device="cpu")
LOG = "log"


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_to_part():
        yield


def cells_of(*methods: str, repetitions: int = 1, measurement: Looked = Looked()) -> list[Cell]:  # noqa: B008 (frozen)
    rates = {method: 0.1 + number for number, method in enumerate(methods)}
    return [
        Cell(method, number, {**TRAINING, "learning_rate": rate}, measurement)
        for method, rate in rates.items()
        for number in range(repetitions)
    ]


def pretend(cell: Cell, store: CellStore, options: Options, *, seconds: float = 0.05) -> Outcome:
    """Stands for training: takes a while, writes down who was asked, fails for methods called ``bad``."""
    with open(store.root / LOG, "a") as handle:
        handle.write(f"{os.environ['RANK']} {cell.method} {cell.repetition}\n")
    time.sleep(seconds)
    if cell.method.startswith("bad"):
        return Failure(cell, "out of memory")
    measured = Measured(cell, {"clean": 0.5}, MADE)
    store.keep(measured)
    return measured


def shared(cells: list[Cell], root: Path, attempt: Callable[..., Outcome] = pretend, **named: Any) -> Callable[[Ranks], Any]:
    """What each rank does: makes its cells by ``attempt``; the names it was given in the end."""

    def work(ranks: Ranks) -> list[str]:
        vars(making)["_attempt"] = attempt
        made = make_cells(cells, CellStore(root), EFFORT, ranks=ranks, name="table", **named)
        return [one.cell.name for one in made]

    return work


def asked_of(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / LOG).read_text().splitlines()]


@needs_fork
def test_every_cell_is_made_once_by_whoever_is_free(tmp_path: Path) -> None:
    world = 4
    cells = cells_of("one", "two", "three", repetitions=3)
    ends = run_ranks(world, shared(cells, tmp_path))
    assert [ended.value for ended in ends] == [[cell.name for cell in cells]] * world, "the same answer, in order, on all"
    asked = asked_of(tmp_path)
    assert sorted(line[1:] for line in asked) == sorted([cell.method, str(cell.repetition)] for cell in cells)
    assert len({line[0] for line in asked}) > 1
    repetitions = [int(line[2]) for line in asked]
    assert all(later >= earlier - 1 for earlier, later in pairwise(repetitions)), "whole ones first"
    (call,) = made_in(tmp_path, cells)
    assert (call["processes"], call["cells_here"]) == (world, len(cells)), "rank 0 notes the times of all"


@needs_fork
def test_a_slow_cell_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Planted: a fixed split, in which a rank with a slow cell has as many others to make as before."""

    def attempt(cell: Cell, store: CellStore, options: Options) -> Outcome:
        made = pretend(cell, store, options, seconds=0.02)
        deadline = time.monotonic() + (20 if cell.method == "slow" else 0)
        while time.monotonic() < deadline and len(asked_of(tmp_path)) < 8:
            time.sleep(0.02)
        return made

    run_ranks(2, shared(cells_of("slow", *(f"fast-{number}" for number in range(7))), tmp_path, attempt))
    by_rank = {line[1]: line[0] for line in asked_of(tmp_path)}
    slow = by_rank.pop("slow")
    assert set(by_rank.values()) == {str(1 - int(slow))}
    assert sum(Share(int(slow), 2).has(number) for number in range(8)) == 4, "what the fixed split would give it"


@needs_fork
def test_a_failed_cell_is_told_once_and_the_others_are_kept(tmp_path: Path) -> None:
    cells, store = cells_of("bad", "good", "bad-too", "better"), CellStore(tmp_path)
    ends = run_ranks(2, shared(cells, tmp_path))
    assert all(ended.error is not None and "2 of 4 models could not be made" in ended.error["what"] for ended in ends)
    assert [ended.quiet for ended in ends] == [False, True]
    assert "out of memory" in (ends[0].error or {})["got"]
    assert [store.finished(cell) is not None for cell in cells] == [False, True, False, True]


@needs_fork
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_rank_stops_the_others_and_loses_no_cell(victim: int, tmp_path: Path) -> None:
    cells, store = cells_of("one", "two", "three", repetitions=2), CellStore(tmp_path)

    def attempt(cell: Cell, store: CellStore, options: Options) -> Outcome:
        if os.environ["RANK"] == str(victim) and cell.repetition == 1:
            die()
        return pretend(cell, store, options, seconds=0.4)

    began = time.monotonic()
    left = run_ranks(2, shared(cells, tmp_path, attempt), patience=2)[1 - victim]
    assert time.monotonic() - began < 30
    assert left.error is not None
    assert (left.error["what"], left.error["where"]) == ("a rank was lost", f"rank {victim}")
    finished = [cell.name for cell in cells if store.finished(cell) is not None]
    assert finished
    (tmp_path / LOG).unlink()
    again = run_ranks(2, shared(cells, tmp_path))
    assert [ended.value for ended in again] == [[cell.name for cell in cells]] * 2
    assert len(asked_of(tmp_path)) == len(cells) - len(finished), "what was finished is not made again"


@needs_fork
def test_ranks_of_different_experiments_are_refused(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> Any:
        return shared(cells_of("one", *(["two"] if ranks.rank else [])), tmp_path)(ranks)

    ends = run_ranks(2, work)
    assert all((ended.error or {})["what"] == "the ranks do not agree on the models to make" for ended in ends)
    assert not (tmp_path / LOG).exists()


def test_measurements_of_one_run_stay_together(tmp_path: Path) -> None:
    """Two ranks on one run would shut each other out."""
    first, later = Looked(), Looked("later", Looked())
    cells = [*cells_of("one", "two", measurement=first), *cells_of("one", "two", measurement=later)]
    assert [[cell.name for cell in model] for model in by_run(cells, CellStore(tmp_path))] == [
        [cells[0].name, cells[2].name],
        [cells[1].name, cells[3].name],
    ]


class OneOfTwo(Ranks):
    """A rank by itself that believes in another one."""

    share = Share(0, 2)

    def sum_in_order(self, flat: torch.Tensor) -> torch.Tensor:
        return flat

    def gathered(self, content: bytes) -> list[bytes]:
        return [content]

    def from_first(self, content: bytes | None) -> bytes:
        return content or b""

    def numbers(self) -> Iterator[int]:
        return iter(range(0, 100, 2))

    def check_device(self, device: torch.device) -> None:
        pass


def test_cells_on_a_disk_of_its_own_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    cells, store = cells_of("one", "two"), CellStore(tmp_path)
    found = list(making.shared_outcomes(cells, store, OneOfTwo(), lambda cell: pretend(cell, store, EFFORT, seconds=0)))
    assert isinstance(found[0], Measured)
    assert isinstance(found[1], Failure)
    assert "one folder" in found[1].why


def test_ranks_that_part_are_no_failure_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the error of a launcher that stops a rank in the middle of a cell, which is one of ours like any other."""

    def parted(*_: Any, **__: Any) -> Any:
        raise gone([1])

    monkeypatch.setattr("twinproof_papers.making.measure", parted)
    with pytest.raises(Exception, match="a rank was lost"):
        make_cells(cells_of("one"), CellStore(tmp_path), EFFORT)
