"""Making cells: whole repetitions first, earlier ones reused, and a failed one that costs no other, in one process or two."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from twinproof.data.record import Dataset
from twinproof.errors import RunError, SystemFault
from twinproof.runs.run import Run
from twinproof.training import device_memory
from twinproof_papers import making
from twinproof_papers import making as measuring
from twinproof_papers.cell import FILE, Cell, CellStore, Measured, Outcome, made_in
from twinproof_papers.making import by_repetition, make_cells
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS

MADE: dict[str, Any] = {"device": "cpu: test", "versions": {}, "date": "", "seconds": 1.0}
TRAINING: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "regular", "epochs": 1, "model": "mlp"}


@dataclass(frozen=True)
class Clean:
    """A measurement that costs nothing."""

    @property
    def after(self) -> None:
        """A run of its own."""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "clean"}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> dict[str, Any]:
        return {"clean": run.record["accuracy"]["value"]}

    def words(self) -> str:
        return "nothing"


def _cells(method: str, repetitions: int, **training: Any) -> list[Cell]:
    return [Cell(method, number, {**TRAINING, **training}, Clean()) for number in range(repetitions)]


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

    monkeypatch.setattr(measuring, "measure", fake)
    monkeypatch.setattr(device_memory, "free_device_memory", lambda: None)  # a fifth of a second for each cell
    return names


def test_a_repetition_is_whole_before_the_next_begins(tmp_path: Path, begun: list[str]) -> None:
    """Planted: the order of methods, in which a call that is cut off has three repetitions of one row and none of another."""
    cells = [*_cells("one", 3), *_cells("two", 3, learning_rate=0.3)]
    done = make_cells(cells, CellStore(tmp_path), Options())
    assert begun == ["one 0", "two 0", "one 1", "two 1", "one 2", "two 2"]
    assert [one.cell for one in done] == cells, "the answer is in the order that was asked for"
    planted = [f"{cell.method} {cell.repetition}" for cell in cells]
    assert len({name.split()[0] for name in planted[: len(planted) // 2]}) == 1


@pytest.mark.parametrize("name", ["dpcert-table2", "dpcert-fig8", "dpcert-fig9", "dpcert-fig16", "dpcert-fig5"])
def test_inside_a_repetition_long_ones_come_first(name: str) -> None:
    cells = by_repetition(REPRODUCTIONS[name].cells(Options(seeds=2)))
    half = len(cells) // 2
    assert [cell.repetition for cell in cells] == [0] * half + [1] * half
    assert [replace(cell, repetition=0).name for cell in cells[half:]] == [cell.name for cell in cells[:half]]


def test_more_repetitions_reuse_the_earlier_ones(tmp_path: Path, begun: list[str]) -> None:
    table, store = REPRODUCTIONS["dpcert-table2"], CellStore(tmp_path)
    first = table.cells(Options(seeds=1, quick=True))
    make_cells(first, store, Options(seeds=1))
    del begun[:]
    more = table.cells(Options(seeds=3, quick=True))
    done = make_cells(more, store, Options(seeds=3))
    assert len(done) == 3 * len(first)
    assert len(begun) == 2 * len(first)
    assert not any(name.endswith(" 0") for name in begun)


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


def test_of_many_failures_the_first_are_told(tmp_path: Path, begun: list[str]) -> None:
    with pytest.raises(RunError, match="and 2 more") as raised:
        make_cells(_cells("bad", 7), CellStore(tmp_path), Options())
    assert raised.value.where.count("bad-") == 7


def test_a_bug_is_not_taken_for_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr(measuring, "measure", broken)
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


def test_times_are_noted_for_what_was_made_alone(tmp_path: Path, begun: list[str]) -> None:
    store, cells = CellStore(tmp_path), [*_cells("good", 2), *_cells("bad", 1)]
    with pytest.raises(RunError):
        make_cells(cells, store, Options(), name="table")
    assert len((tmp_path / FILE).read_text().splitlines()) == 2
    make_cells(cells[:2], store, Options(), name="again")
    assert [call["experiment"] for call in made_in(tmp_path, cells)] == ["table"], "a call that made nothing is no call"


@pytest.mark.parametrize(("error", "kind"), [(OSError(28, "No space left"), SystemFault), (MemoryError(), RunError)])
def test_a_full_disk_stops_all_cells_and_a_lack_of_memory_one(
    error: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def fail(cell: Cell, *_: object, **__: object) -> Measured:
        begun.append(cell.name)
        raise error

    monkeypatch.setattr(measuring, "measure", fail)
    with pytest.raises(kind):
        make_cells(_cells("good", 3), CellStore(tmp_path), Options(seeds=3))
    assert len(begun) == (1 if kind is SystemFault else 3)
