"""Making one cell: train, measure, and keep the numbers."""

from __future__ import annotations

import time
from pathlib import Path

from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import RUN_AGAIN, CellStore, Measured, is_trained
from twinproof.recipes.train import train
from twinproof.runs.layout import software_versions, utc_now
from twinproof.runs.run import Run

_AT_THE_END = 10**9


def measure(cell: Cell, store: CellStore, dataset: Dataset, *, device: str = "auto") -> Measured:
    """Trains and measures the model of ``cell`` in its folder, and keeps the numbers.

    Guarantees
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

    Guarantees
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
    """The run of ``cell``: from the disk, gone on with, or new."""
    settings = {name: value for name, value in cell.training.items() if name != "data"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Nobody watches a cell: one report, at the end.
    return train(
        {**settings, "performance": {"device": device, "report_every": _AT_THE_END}}, folder, resume=True, dataset=dataset
    )
