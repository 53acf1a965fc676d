"""Making a table or figure again: cells, findings, results file, picture, page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.compute.devices import resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.errors import ConfigError, DataError, system_faults
from twinproof.files import make_folder, write_atomic
from twinproof.papers.catalogue.experiments import find_experiment
from twinproof.papers.cell_store import CELLS, CellStore, Measured
from twinproof.papers.comparison import Row, compare, markdown
from twinproof.papers.effort import Effort
from twinproof.papers.experiment import Experiment
from twinproof.papers.findings import Findings, trainings_words
from twinproof.papers.making import make_cells
from twinproof.papers.methods import QUICK_DATA
from twinproof.papers.picture import write_picture
from twinproof.papers.reproduction import Reproduction, Selectable
from twinproof.papers.reproductions import REPRODUCTIONS
from twinproof.papers.results_file import FILE, devices, results_record, results_text
from twinproof.papers.timings import made_in
from twinproof.progress import Progress, Silent

PICTURE, PAGE = "figure.svg", "table.md"


@dataclass(frozen=True)
class Reproduced:
    """What was made: the folder with results.json, figure.svg and table.md, and what they say."""

    experiment: Experiment
    folder: Path
    findings: Findings
    rows: list[Row]
    results: dict[str, Any]


@system_faults("run the same command again: it goes on where it stopped")
def reproduce(
    name: str,
    out: Path,
    effort: Effort | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> Reproduced:
    """Makes one experiment again into ``out``/name; its cells lie in ``out``/cells, where other experiments find them too.

    With several ``ranks`` (docs/distributed.md) all call this alike and see one folder ``out``; they share out the cells, and
    rank 0 writes the results.

    Guarantees
        - Cells are made as ``make_cells`` promises; interrupted ones go on where they stopped.
        - Results, picture and page are functions of the cells and of the times noted beside them: making them again changes
          nothing.
    """
    effort, progress = effort or Effort(), progress or Silent()
    experiment = find_experiment(name)
    reproduction = selected(_runnable(experiment, effort), experiment, effort.methods)
    cells, store = reproduction.cells(effort), CellStore(out / CELLS)
    resolve_device(effort.device)  # refused before a folder is made
    make_folder(store.root, "the models")
    done = make_cells(cells, store, effort, overwrite=overwrite, progress=progress, name=name, ranks=ranks)
    findings = reproduction.findings(done)
    caption = _caption(done, effort)
    folder = out / name
    results = results_record(experiment, effort, findings, done, made_in(store.root, cells))
    if ranks.is_first:
        make_folder(folder, "the results")
        write_atomic(folder / FILE, results_text(results).encode())
        write_atomic(folder / PAGE, markdown(experiment, findings, caption, results["command"]).encode())
        write_picture(lambda: reproduction.figure(findings, caption), folder / PICTURE)
    ranks.wait()  # who returns finds the files
    return Reproduced(experiment, folder, findings, compare(experiment, findings), results)


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


def selected(reproduction: Reproduction, experiment: Experiment, methods: tuple[str, ...]) -> Reproduction:
    """Only the rows that are asked for, where any are; ConfigError where there are none to choose from."""
    if not methods:
        return reproduction
    if not isinstance(reproduction, Selectable):
        able = [name for name, other in REPRODUCTIONS.items() if isinstance(other, Selectable)]
        raise ConfigError(
            f"{experiment.name} has no rows to choose from",
            where="methods",
            got=", ".join(methods),
            wanted=f"no methods, or one of {', '.join(able)}",
            fix="leave --methods out",
        )
    return reproduction.only(methods)


def _caption(done: Sequence[Measured], effort: Effort) -> str:
    """Machine, software, date and how sure, so that a picture never stands without them."""
    if not done:
        return "computed, not measured"
    versions = ", ".join(sorted({str(one.made["versions"]["torch"]) for one in done}))
    last = max(str(one.made["date"]) for one in done)[:10]
    measured = done[0].cell.measurement.words()
    first = f"First look ({QUICK_DATA}, small settings), not comparable with the paper. " if effort.quick else ""
    return f"{first}{trainings_words(effort.seeds)}; {measured}. {devices(done)}; torch {versions}; {last}."
