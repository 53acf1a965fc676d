"""Making a table or figure again: cells, findings, results file, picture, page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, DataError
from twinproof.files import write_atomic, write_json
from twinproof.papers.catalogue.experiments import find_experiment
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import CellStore, Measured
from twinproof.papers.comparison import Row, compare, markdown
from twinproof.papers.effort import Effort
from twinproof.papers.experiment import Experiment
from twinproof.papers.findings import Findings
from twinproof.papers.methods import QUICK_DATA
from twinproof.papers.picture import write_picture
from twinproof.papers.reproduction import Reproduction
from twinproof.papers.reproductions import REPRODUCTIONS
from twinproof.progress import Progress, Silent
from twinproof.runs.environment import software_versions, utc_now
from twinproof.training.device import describe_device, resolve_device

FORMAT = 1
RESULTS, PICTURE, PAGE, CELLS = "results.json", "figure.svg", "table.md", "cells"


@dataclass(frozen=True)
class Reproduced:
    """What was made: the folder with results.json, figure.svg and table.md, and what they say."""

    experiment: Experiment
    folder: Path
    findings: Findings
    rows: list[Row]
    results: dict[str, Any]


def reproduce(
    name: str, out: Path, effort: Effort | None = None, *, overwrite: bool = False, progress: Progress | None = None
) -> Reproduced:
    """Makes one experiment again into ``out``/name; its cells lie in ``out``/cells, where other experiments find them too.

    Guarantees
        - A finished cell is never made twice, nor reused under other settings; interrupted ones go on where they stopped.
        - Results, picture and page are functions of the cells: making them again changes nothing.
    """
    effort, progress = effort or Effort(), progress or Silent()
    experiment = find_experiment(name)
    reproduction = _runnable(experiment, effort)
    cells = reproduction.cells(effort)
    done = make_cells(cells, CellStore(out / CELLS), effort, overwrite=overwrite, progress=progress)
    findings = reproduction.findings(done)
    caption = _caption(done, effort)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    results = _results(experiment, effort, findings, done)
    write_json(folder / RESULTS, results)
    write_atomic(folder / PAGE, markdown(experiment, findings, caption, results["command"]).encode())
    write_picture(lambda: reproduction.figure(findings, caption), folder / PICTURE)
    return Reproduced(experiment, folder, findings, compare(experiment, findings), results)


def make_cells(
    cells: list[Cell], store: CellStore, effort: Effort, *, overwrite: bool = False, progress: Progress | None = None
) -> list[Measured]:
    """Every cell, from the disk or made now, in the order given."""
    progress = progress or Silent()
    if overwrite:
        for cell in cells:
            store.forget(cell)
    kept: dict[str, Measured | None] = {cell.name: store.finished(cell) for cell in cells}
    if cells:
        progress.start("models", len(cells), sum(found is not None for found in kept.values()))
    missing = [cell for cell in cells if kept[cell.name] is None]
    for found in _made(missing, store, effort):
        kept[found.cell.name] = found
        progress.advance()
        progress.say(f"{found.cell.name}: accuracy {100 * found.numbers['clean']:.1f} %, {found.made['seconds']:.0f} s")
    return [whole for cell in cells if (whole := kept[cell.name]) is not None]


def _made(cells: list[Cell], store: CellStore, effort: Effort) -> Iterator[Measured]:
    """The cells as they become ready; with several processes each has its own copy of everything."""
    if effort.processes == 1 or len(cells) < 2:
        for cell in cells:
            yield _make(cell, store, effort)
        return
    # A GPU cannot be shared with a forked child.
    with ProcessPoolExecutor(min(effort.processes, len(cells)), mp_context=get_context("spawn")) as pool:
        for ready in as_completed([pool.submit(_make, cell, store, effort) for cell in cells]):
            yield ready.result()


def _make(cell: Cell, store: CellStore, effort: Effort) -> Measured:
    from twinproof.papers.measure import measure

    return measure(cell, store, _dataset(str(cell.training["data"]["source"]), effort.data_root), device=effort.device)


@lru_cache(maxsize=2)
def _dataset(source: str, root: Path | None) -> Dataset:
    return load(source, root=root)


def _runnable(experiment: Experiment, effort: Effort) -> Reproduction:
    if experiment.obstacle:
        raise ConfigError(
            f"{experiment.name} cannot be made here",
            where=f"{experiment.item}: {experiment.shows}",
            got=experiment.obstacle,
            wanted="a table or figure that runs here",
            fix="see `twinproof reproduce --list`",
        )
    available = experiment.availability(effort.data_root)
    if not available.runs and not effort.quick:
        needed = " and ".join(f"the data set {name!r}" for name in experiment.data)
        raise DataError(
            f"{experiment.name} needs {needed}",
            where=experiment.item,
            got=available.reason,
            wanted="its official files below the data folder",
            fix="give --data-root, or look first with --quick",
        )
    return REPRODUCTIONS[experiment.name]


def _results(experiment: Experiment, effort: Effort, findings: Findings, done: list[Measured]) -> dict[str, Any]:
    chosen = {key: value for key, value in asdict(effort).items() if key not in ("data_root", "processes")}
    return {
        "format": FORMAT,
        **{key: value for key, value in experiment.as_dict().items() if key not in ("runs_here", "reason", "published")},
        "paper_settings": dict(experiment.settings),
        "settings": chosen,
        "comparable": not effort.quick,
        "command": effort.command(experiment.name, computed=not done),
        "device": _devices(done) if done else describe_device(resolve_device(effort.device)),
        "versions": done[-1].made["versions"] if done else software_versions(),
        "date": max(str(one.made["date"]) for one in done) if done else utc_now(),
        "comparison": [row.as_dict() for row in compare(experiment, findings)],
        "tests": [test.as_dict() for test in findings.tests],
        "notes": list(findings.notes),
        "tables": [asdict(block) for block in findings.tables],
        "panels": [panel.as_dict() for panel in findings.panels],
        "cells": [one.as_dict() for one in done],
    }


def _devices(done: list[Measured]) -> str:
    return ", ".join(sorted({str(one.made["device"]) for one in done}))


def _caption(done: list[Measured], effort: Effort) -> str:
    """Machine, software, date and how sure, so that a picture never stands without them."""
    if not done:
        return "computed, not measured"
    versions = ", ".join(sorted({str(one.made["versions"]["torch"]) for one in done}))
    last = max(str(one.made["date"]) for one in done)[:10]
    measured = done[0].cell.measurement.words()
    first = f"First look ({QUICK_DATA}, small settings), not comparable with the paper. " if effort.quick else ""
    return (
        f"{first}Means of {effort.seeds} trainings with 95 % t-intervals over them; {measured}. "
        f"{_devices(done)}; torch {versions}; {last}."
    )
