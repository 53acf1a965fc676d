"""Training and measuring cells: alone, in several processes, or shared out among ranks."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path

from twinproof.compute.devices import describe_device, resolve_device
from twinproof.compute.ranks import ALONE, RankError, Ranks
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, OutOfMemory, RunError, SystemFault, TwinproofError, fault_of
from twinproof.progress import Progress, Silent
from twinproof.recipes.train import train
from twinproof.runs.layout import software_versions, utc_now
from twinproof.runs.run import Run
from twinproof.training.passes import free_device_memory
from twinproof_papers.cell import RUN_AGAIN, Call, Cell, CellStore, Failure, Measured, Outcome, is_trained
from twinproof_papers.experiment import Options

_AT_THE_END = 10**9


def measure(cell: Cell, store: CellStore, dataset: Dataset, *, device: str = "auto") -> Measured:
    """Trains and measures the model of ``cell`` in its folder, and keeps the numbers.

    - Killed at any moment and called again, it goes on where it stopped. Nothing is kept before everything is measured.
    - A measurement that comes after another one finds all that the other one leaves in a run, of one model. The other
      one's kept numbers are never touched; where its run is not there any more, ``made`` says which run was measured.
    """
    began = time.monotonic()
    provide_base(cell, store, dataset, device=device)
    run = trained(cell, store.run_folder(cell), dataset, device=device)
    numbers = {
        "epsilon": run.epsilon,
        "privacy_status": str(run.guarantee.status),
        "accuracy": run.record["accuracy"]["value"],
        **cell.measurement.numbers(run, dataset, device=device),
    }
    made = {
        "device": describe_device(resolve_device(device)),
        "versions": software_versions(),
        "date": utc_now(),
        "seconds": round(time.monotonic() - began, 1),
        "training_seconds": run.training_seconds,
        **({RUN_AGAIN: run_again_words(cell)} if store.has_run_again(cell) else {}),
    }
    measured = Measured(cell, numbers, made)
    store.keep(measured)
    return measured


def provide_base(cell: Cell, store: CellStore, dataset: Dataset, *, device: str) -> None:
    """The run that ``cell`` goes on with, as measuring its base leaves it: from the disk, or made (again); else nothing.

    What the base kept stays as it is. A run that is there is never trained again: what is missing of the base's
    measurement is made on it. One that is gone is made again under the base's settings, and that is noted before.
    """
    base, basis = cell.base, cell.measurement.after
    if base is None or basis is None:
        return
    if store.finished(base) is None:
        measure(base, store, dataset, device=device)
        return
    folder = store.run_folder(base)
    if basis.is_whole(folder):
        return
    if not is_trained(folder):
        store.note_run_again(base)
    # For what it leaves in the run; the numbers that were kept are those of the first time.
    basis.numbers(trained(base, folder, dataset, device=device), dataset, device=device)


def run_again_words(cell: Cell) -> str:
    """What ``made`` says of a run that was made again under the settings of the base."""
    if cell.training.get("seed") is not None:
        return "made again from the same seed"
    return "made again: another training under the same settings, as no seed is known"


def trained(cell: Cell, folder: Path, dataset: Dataset, *, device: str) -> Run:
    settings = {name: value for name, value in cell.training.items() if name != "data"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Nobody watches a cell: one report, at the end.
    return train(
        {**settings, "performance": {"device": device, "report_every": _AT_THE_END}}, folder, resume=True, dataset=dataset
    )


# What can befall one model and not the next: settings that do not fit, divergence, memory. A fault of the disk stops all;
# anything else is a bug.
_FAILURES = (TwinproofError, RuntimeError, MemoryError, OSError)
_NAMED = 5  # failed cells whose error is shown


def make_cells(
    cells: Sequence[Cell],
    store: CellStore,
    options: Options,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    name: str = "",
    ranks: Ranks = ALONE,
) -> list[Measured]:
    """Every cell, from the disk or made now, in the order given; ``name`` is that of the experiment that asks for them.

    With several ``ranks`` all call this alike and get the same answer; each makes whole cells, one at a time.

    - A finished cell is never made twice, nor reused under other settings, however many repetitions were asked for then.
    - A repetition is begun when all cells of the one before have been begun: a call that is cut off leaves whole ones.
    - A cell that fails takes no other with it: all others are made and kept, and the RunError at the end names it. A
      fault of the disk stops the work with a ``SystemFault``: it would fail every cell.
    - A rank that is lost stops the others; every finished cell is kept, and those under way go on where they stopped.
    """
    progress = progress or Silent()
    check_options(options, ranks)
    if overwrite and ranks.is_first:
        for cell in cells:
            store.forget(cell)
    ranks.wait()  # nobody looks before what is to go is gone
    kept: dict[str, Measured | None] = {cell.name: store.finished(cell) for cell in cells}
    if cells:
        progress.start("models", len(cells), sum(found is not None for found in kept.values()))
    missing = by_repetition([cell for cell in cells if kept[cell.name] is None])
    call, failures = Call(store.root, name, options.processes * ranks.world), []
    for outcome in _outcomes(missing, store, options, ranks):
        progress.advance()
        if isinstance(outcome, Failure):
            failures.append(outcome)
            progress.say(f"{outcome.cell.name}: failed: {outcome.why}")
            continue
        kept[outcome.cell.name] = outcome
        if ranks.is_first:
            call.made(outcome.cell)
        progress.say(_summary(outcome))
        if RUN_AGAIN in outcome.made:
            progress.say(f"{outcome.cell.name}: the run it goes on with was not there, {outcome.made[RUN_AGAIN]}")
    if failures:
        raise _failed(failures, len(missing))
    return [whole for cell in cells if (whole := kept[cell.name]) is not None]


def by_repetition(cells: Sequence[Cell]) -> list[Cell]:
    """Repetition 0 of everything, then 1, and so on; inside one the order is the experiment's."""
    return sorted(cells, key=lambda cell: cell.repetition)


def _outcomes(cells: list[Cell], store: CellStore, options: Options, ranks: Ranks) -> Iterator[Outcome]:
    """The cells as they become ready; with several processes each has its own copy of everything."""
    if ranks is not ALONE:
        yield from shared_outcomes(cells, store, ranks, partial(_attempt, store=store, options=options))
        return
    if options.processes == 1 or len(cells) < 2:
        for cell in cells:
            yield _attempt(cell, store, options)
        return
    # A GPU cannot be shared with a forked child.
    pool = ProcessPoolExecutor(min(options.processes, len(cells)), mp_context=get_context("spawn"))
    try:
        waiting = {pool.submit(_attempt, cell, store, options): cell for cell in cells}
        for ready in as_completed(waiting):
            try:
                yield ready.result()
            except BrokenProcessPool:
                yield Failure(waiting[ready], "a process was ended from outside, and all others with it (out of memory?)")
    finally:
        pool.shutdown(cancel_futures=True)  # who interrupts waits for what is running, not for the whole table


def _attempt(cell: Cell, store: CellStore, options: Options) -> Outcome:
    outcome: Outcome
    try:
        dataset = _dataset(str(cell.training["data"]["source"]), options.data_root)
        outcome = measure(cell, store, dataset, device=options.device)
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


def _summary(measured: Measured) -> str:
    return f"{measured.cell.name}: accuracy {100 * measured.numbers['clean']:.1f} %, {measured.made['seconds']:.0f} s"


def _failed(failures: Sequence[Failure], asked: int) -> RunError:
    shown = [f"{failure.cell.name}: {failure.why}" for failure in failures[:_NAMED]]
    more = [f"and {len(failures) - _NAMED} more"] if len(failures) > _NAMED else []
    return RunError(
        f"{len(failures)} of {asked} models could not be made",
        where=", ".join(failure.cell.name for failure in failures),
        got="\n".join(shown + more),
        wanted="every model of the experiment",
        fix="the others are kept: the same command makes these alone; fewer --processes leave each more memory",
    )


_UNSEEN = "another rank has made it, but it is not here: all ranks need to see one folder"


def shared_outcomes(
    cells: Sequence[Cell], store: CellStore, ranks: Ranks, make: Callable[[Cell], Outcome]
) -> Iterator[Outcome]:
    """The outcome of each cell, on every rank: of its own as they become ready, of the others' by the end.

    Rank 0 sees cells of the others earlier, between its own, so that it can tell how far the work is.
    """
    models = by_run(cells, store)
    ranks.agree("the models to make", hashlib.sha256("\n".join(cell.name for cell in cells).encode()).hexdigest())
    waiting = {cell.name: cell for cell in cells}
    failed: dict[str, str] = {}
    for number in takewhile(lambda number: number < len(models), ranks.numbers()):
        for cell in models[number]:
            outcome = make(cell)
            del waiting[cell.name]
            if isinstance(outcome, Failure):
                failed[cell.name] = outcome.why
            yield outcome
        if ranks.is_first:
            for found in [found for cell in waiting.values() if (found := store.finished(cell)) is not None]:
                del waiting[found.cell.name]
                yield found
    reported: dict[str, str] = {}
    for words in ranks.gathered(json.dumps(failed).encode()):
        reported |= json.loads(words)
    for cell in waiting.values():
        yield store.finished(cell) or Failure(cell, reported.get(cell.name, _UNSEEN))


def by_run(cells: Sequence[Cell], store: CellStore) -> list[list[Cell]]:
    """The cells of each model together, in the order in which models come first: two ranks must not work on one run."""
    models: dict[str, list[Cell]] = {}
    for cell in cells:
        models.setdefault(str(store.run_folder(cell)), []).append(cell)
    return list(models.values())


def check_options(options: Options, ranks: Ranks) -> None:
    """Refuses several processes inside each of several ranks, and ranks that would share a GPU."""
    if ranks is ALONE:
        return
    if options.processes > 1:
        raise ConfigError(
            "ranks make one model at a time each",
            where="processes",
            got=f"{options.processes}, in each of {ranks.world} ranks",
            wanted="1 with torchrun",
            fix="leave --processes out, or do without torchrun",
        )
    ranks.check_device(resolve_device(options.device))
