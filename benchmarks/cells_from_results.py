"""Puts the numbers of models back from results files: a figure is drawn again, or gets more seeds, without making them anew.

    python benchmarks/cells_from_results.py results/stobatch-fig2.json results/stobatch-fig6.json --out reproduced
    twinproof reproduce stobatch-fig2 --seeds 3 --out reproduced    # makes what is missing, draws the rest from the files

Guarantees
    - A cell is put back only under the settings that the experiment has today. A file of an older program is refused.
    - From what was put back the results of every file follow again, to the last digit; else nothing is put back.
    - Trained networks are in no results file: a measurement that goes on with one makes it again, and says so.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from twinproof.errors import CheckFailed, ConfigError, DataError, UserError
from twinproof.files import canonical_json
from twinproof_papers.catalogue import find_experiment
from twinproof_papers.cell import CELLS, CellStore, Measured, made_in
from twinproof_papers.cell import FILE as TIMINGS
from twinproof_papers.experiment import Experiment, Options
from twinproof_papers.reproduce import REPRODUCTIONS, Reproduction, selected
from twinproof_papers.results_file import FORMAT, read_cells, results_record

Record = dict[str, Any]
_SLACK = timedelta(seconds=2)  # dates are whole seconds, and a cell's is taken a moment before its time is noted
_NOT_HERE = "in no file"


def put_back(files: Iterable[Path], out: Path) -> int:
    """Writes the cells of ``files`` below ``out``, which holds none yet; how many."""
    store = CellStore(out / CELLS)
    if store.root.exists():
        raise ConfigError(
            "there are cells already", where="--out", got=str(store.root), wanted="a folder without cells", fix="choose another"
        )
    known = {path: read_record(path) for path in files}
    cells = {path: cells_of(path, record) for path, record in known.items()}
    try:
        for done in cells.values():
            for measured in done:
                store.keep(measured)
        write_times(store.root, known, cells)
        for path, record in known.items():
            check(path, record, store)
    except BaseException:
        shutil.rmtree(store.root, ignore_errors=True)
        raise
    return len({one.cell.name for done in cells.values() for one in done})


def read_record(path: Path) -> Record:
    """What a results file holds; DataError where it is none of this program."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}", "a results file") from error
    found = record.get("format") if isinstance(record, dict) and "item" in record else None
    if found != FORMAT:
        raise _refused(path, f"format {found}", f"a results file of format {FORMAT}, as this program writes it")
    return dict(record)


def cells_of(path: Path, record: Record) -> list[Measured]:
    """The cells of one file, as the experiment asks for them today; DataError where the file has others."""
    _, effort, reproduction = _asked(record)
    found = {cell["name"]: cell for cell in read_cells(path)}
    done = []
    for cell in reproduction.cells(effort):
        entry = found.get(cell.name)
        if entry is None or _settings(entry) != canonical_json(cell.settings):
            raise _refused(path, "other models", f"{cell.name} and its settings: the experiment has changed since")
        done.append(Measured(cell, entry["numbers"], entry["made"]))
    try:
        is_part = bool(reproduction.findings(done).short)
    except (LookupError, TypeError, ValueError):  # findings need what was left out
        is_part = True
    if is_part:
        raise _refused(path, "a part of what was measured of its models", "a file that holds all of it")
    return done


def write_times(root: Path, known: Mapping[Path, Record], cells: Mapping[Path, list[Measured]]) -> None:
    """The calls that the files tell of, a line for each of their cells; those that are in no file have no name."""
    calls: dict[str, Record] = {}
    made: dict[str, set[str]] = {}
    for path, record in known.items():
        for call, names in _by_call(record["made_in"], cells[path]):
            key = canonical_json({name: value for name, value in call.items() if name != "cells_here"})
            calls[key] = call
            made.setdefault(key, set()).update(names)
    lines = []
    for key, call in sorted(calls.items(), key=lambda entry: str(entry[1]["began"])):
        told = {name: call[name] for name in ("experiment", "began", "processes")}
        names = sorted(made[key]) + [_NOT_HERE] * (int(call["cells"]) - len(made[key]))
        lines += [canonical_json({**told, "call": key, "cell": name, "after": call["seconds"]}) for name in names]
    (root / TIMINGS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def check(path: Path, record: Record, store: CellStore) -> None:
    """Refuses where other results follow from the cells in the store than the file has: another file may have other numbers."""
    experiment, effort, reproduction = _asked(record)
    cells = reproduction.cells(effort)
    done = [found for cell in cells if (found := store.finished(cell)) is not None]
    again = results_record(experiment, effort, reproduction.findings(done), done, made_in(store.root, cells))
    wrong = [name for name, value in record.items() if _comparable(name, again[name]) != _comparable(name, value)]
    if wrong:
        raise CheckFailed(
            "other results follow from the cells than the file has",
            where=str(path),
            got=f"differences in {', '.join(wrong)}",
            wanted="the file's own results",
        )


def _asked(record: Record) -> tuple[Experiment, Options, Reproduction]:
    """The experiment, how much of it was asked for, and what makes it."""
    experiment = find_experiment(record["name"])
    effort = Options(**{**record["settings"], "methods": tuple(record["settings"]["methods"])})
    return experiment, effort, selected(REPRODUCTIONS[experiment.name], experiment, effort.methods)


def _by_call(calls: Iterable[Record], done: Iterable[Measured]) -> list[tuple[Record, list[str]]]:
    """Each call with the cells it made: those that were ready while it ran; where two ran at once, as many as each says."""
    shared: list[tuple[Record, list[str]]] = [(call, []) for call in calls]
    options = {one.cell.name: [entry for entry in shared if _ran(entry[0], str(one.made["date"]))] for one in done}
    for name, fitting in sorted(options.items(), key=lambda option: len(option[1])):
        for call, names in fitting:
            if len(names) < call["cells_here"]:
                names.append(name)
                break
    return shared


def _ran(call: Record, date: str) -> bool:
    began = datetime.fromisoformat(call["began"])
    return began - _SLACK <= datetime.fromisoformat(date) <= began + timedelta(seconds=call["seconds"]) + _SLACK


def _comparable(name: str, value: Any) -> str:
    """Calls that ran at once have no order."""
    return canonical_json(sorted(value, key=canonical_json) if name == "made_in" else value)


def _settings(entry: Record) -> str:
    return canonical_json({name: value for name, value in entry.items() if name not in ("name", "numbers", "made")})


def _refused(path: Path, got: str, wanted: str) -> DataError:
    return DataError("this results file cannot be put back", where=str(path), got=got, wanted=wanted)


def main() -> None:
    """Puts back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--out", type=Path, required=True, help="the folder that `twinproof reproduce --out` gets")
    asked = parser.parse_args()
    try:
        print(f"{put_back(asked.files, asked.out)} models put back into {asked.out / CELLS}")
    except (UserError, CheckFailed) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
