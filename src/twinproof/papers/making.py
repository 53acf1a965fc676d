"""Making the cells that are missing: whole repetitions first, several at a time, and a failed one that costs no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path

from twinproof.compute.ranks import ALONE, RankError, Ranks
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import OutOfMemory, RunError, SystemFault, TwinproofError, fault_of
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import RUN_AGAIN, CellStore, Measured
from twinproof.papers.effort import Effort
from twinproof.papers.outcome import Failure, Outcome
from twinproof.papers.shared_making import check_effort, shared_outcomes
from twinproof.papers.timings import Call
from twinproof.progress import Progress, Silent

# What can befall one model and not the next: settings that do not fit, divergence, memory. A fault of the disk stops all;
# anything else is a bug.
_FAILURES = (TwinproofError, RuntimeError, MemoryError, OSError)
_NAMED = 5  # failed cells whose error is told


def make_cells(
    cells: Sequence[Cell],
    store: CellStore,
    effort: Effort,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    name: str = "",
    ranks: Ranks = ALONE,
) -> list[Measured]:
    """Every cell, from the disk or made now, in the order given; ``name`` is that of the experiment that asks for them.

    With several ``ranks`` all call this alike and get the same answer; each makes whole cells, one at a time.

    Guarantees
        - A finished cell is never made twice, nor reused under other settings, however many repetitions were asked for then.
        - A repetition is begun when all cells of the one before have been begun: a call that is cut off leaves whole ones.
        - A cell that fails takes no other with it: all others are made and kept, and the RunError at the end names it. A
          fault of the disk stops the work with a ``SystemFault``: it would fail every cell.
        - A rank that is lost stops the others; every finished cell is kept, and those under way go on where they stopped.
    """
    progress = progress or Silent()
    check_effort(effort, ranks)
    if overwrite and ranks.is_first:
        for cell in cells:
            store.forget(cell)
    ranks.wait()  # nobody looks before what is to go is gone
    kept: dict[str, Measured | None] = {cell.name: store.finished(cell) for cell in cells}
    if cells:
        progress.start("models", len(cells), sum(found is not None for found in kept.values()))
    missing = by_repetition([cell for cell in cells if kept[cell.name] is None])
    call, failures = Call(store.root, name, effort.processes * ranks.world), []
    for outcome in _outcomes(missing, store, effort, ranks):
        progress.advance()
        if isinstance(outcome, Failure):
            failures.append(outcome)
            progress.say(f"{outcome.cell.name}: failed: {outcome.why}")
            continue
        kept[outcome.cell.name] = outcome
        if ranks.is_first:
            call.made(outcome.cell)
        progress.say(_told(outcome))
        if RUN_AGAIN in outcome.made:
            progress.say(f"{outcome.cell.name}: the run it goes on with was not there, {outcome.made[RUN_AGAIN]}")
    if failures:
        raise _failed(failures, len(missing))
    return [whole for cell in cells if (whole := kept[cell.name]) is not None]


def by_repetition(cells: Sequence[Cell]) -> list[Cell]:
    """Repetition 0 of everything, then 1, and so on; inside one the order is the experiment's."""
    return sorted(cells, key=lambda cell: cell.repetition)


def _outcomes(cells: list[Cell], store: CellStore, effort: Effort, ranks: Ranks) -> Iterator[Outcome]:
    """The cells as they become ready; with several processes each has its own copy of everything."""
    if ranks is not ALONE:
        yield from shared_outcomes(cells, store, ranks, partial(_attempt, store=store, effort=effort))
        return
    if effort.processes == 1 or len(cells) < 2:
        for cell in cells:
            yield _attempt(cell, store, effort)
        return
    # A GPU cannot be shared with a forked child.
    pool = ProcessPoolExecutor(min(effort.processes, len(cells)), mp_context=get_context("spawn"))
    try:
        waiting = {pool.submit(_attempt, cell, store, effort): cell for cell in cells}
        for ready in as_completed(waiting):
            try:
                yield ready.result()
            except BrokenProcessPool:
                yield Failure(waiting[ready], "a process was ended from outside, and all others with it (out of memory?)")
    finally:
        pool.shutdown(cancel_futures=True)  # who interrupts waits for what is running, not for the whole table


def _attempt(cell: Cell, store: CellStore, effort: Effort) -> Outcome:
    from twinproof.papers.measure import measure
    from twinproof.training.step_sums import free_device_memory

    outcome: Outcome
    try:
        dataset = _dataset(str(cell.training["data"]["source"]), effort.data_root)
        outcome = measure(cell, store, dataset, device=effort.device)
    except RankError:
        raise  # the ranks have parted: that says nothing about this cell
    except _FAILURES as error:
        fault = error if isinstance(error, SystemFault) else fault_of(error)
        if isinstance(fault, SystemFault) and not isinstance(fault, OutOfMemory):
            raise fault from error
        outcome = Failure(cell, f"{type(error).__name__}: {error}")
    # The next cell of this process starts with as much as this one; only here is the error, with all that it holds, gone.
    free_device_memory()
    return outcome


@lru_cache(maxsize=2)
def _dataset(source: str, root: Path | None) -> Dataset:
    return load(source, root=root)


def _told(measured: Measured) -> str:
    return f"{measured.cell.name}: accuracy {100 * measured.numbers['clean']:.1f} %, {measured.made['seconds']:.0f} s"


def _failed(failures: Sequence[Failure], asked: int) -> RunError:
    told = [f"{failure.cell.name}: {failure.why}" for failure in failures[:_NAMED]]
    more = [f"and {len(failures) - _NAMED} more"] if len(failures) > _NAMED else []
    return RunError(
        f"{len(failures)} of {asked} models could not be made",
        where=", ".join(failure.cell.name for failure in failures),
        got="\n".join(told + more),
        wanted="every model of the experiment",
        fix="the others are kept: the same command makes these alone; fewer --processes leave each more memory",
    )
