"""Making one cell: train, measure, and keep the numbers."""

from __future__ import annotations

import time
from pathlib import Path

from twinproof.data.record import Dataset
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import CellStore, Measured
from twinproof.recipes.train import train
from twinproof.runs.environment import software_versions, utc_now
from twinproof.runs.run import Run
from twinproof.training.device import describe_device, resolve_device

_AT_THE_END = 10**9


def measure(cell: Cell, store: CellStore, dataset: Dataset, *, device: str = "auto") -> Measured:
    """Trains and measures the model of ``cell`` in its folder, and keeps the numbers.

    Guarantees
        Killed at any moment and called again, it goes on where it stopped. Nothing is kept before everything is measured.
    """
    began = time.monotonic()
    if cell.base is not None and store.finished(cell.base) is None:
        measure(cell.base, store, dataset, device=device)
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
    }
    measured = Measured(cell, numbers, made)
    store.keep(measured)
    return measured


def trained(cell: Cell, folder: Path, dataset: Dataset, *, device: str) -> Run:
    """The run of ``cell``: from the disk, gone on with, or new."""
    settings = {name: value for name, value in cell.training.items() if name != "data"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Nobody watches a cell: one report, at the end.
    return train(
        {**settings, "performance": {"device": device, "report_every": _AT_THE_END}}, folder, resume=True, dataset=dataset
    )
