"""A results file: what was asked, found and measured, with an entry to a line, so that it stays small and can be compared.

What all cells of a file have in common is written once (``cells_share``). Cells that another experiment's file holds are named
(``cells_in``). ``read_cells`` undoes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twinproof.compute.devices import describe_device, resolve_device
from twinproof.errors import DataError
from twinproof.files import canonical_json
from twinproof.runs.layout import software_versions, utc_now
from twinproof_papers.cell import CELLS, CellStore, Measured
from twinproof_papers.comparison import compare
from twinproof_papers.experiment import Experiment, Options
from twinproof_papers.findings import Findings

Record = dict[str, Any]


def common(records: Sequence[Mapping[str, Any]]) -> Record:
    """The entries that all ``records`` have with the same value, also inside of entries that are records in all of them."""
    if not records:
        return {}
    first, others = records[0], records[1:]
    shared: Record = {}
    for key, value in first.items():
        if not all(key in other for other in others):
            continue
        if isinstance(value, dict) and all(isinstance(other[key], dict) for other in others):
            shared[key] = common([record[key] for record in records])
        elif all(_same(value, other[key]) for other in others):
            shared[key] = value
    return shared


def without(record: Mapping[str, Any], shared: Mapping[str, Any]) -> Record:
    """``record`` less what is in ``shared``."""
    left: Record = {}
    for key, value in record.items():
        if key not in shared:
            left[key] = value
        elif isinstance(shared[key], dict) and (rest := without(value, shared[key])):
            left[key] = rest
    return left


def merged(shared: Mapping[str, Any], record: Mapping[str, Any]) -> Record:
    """``record`` with what it has in common with others put back."""
    whole: Record = dict(shared)
    for key, value in record.items():
        both = isinstance(value, dict) and isinstance(shared.get(key), dict)
        whole[key] = merged(shared[key], value) if both else value
    return whole


def _same(one: object, other: object) -> bool:
    """Equal as text: True is not 1, nor 1 the 1.0 of another setting, in lists neither."""
    return canonical_json(one) == canonical_json(other)


FORMAT = 3
FILE = "results.json"
_DIGITS = 12  # of a number: what is behind is the rounding of a sum, as in 0.30000000000000004
_SHARED = ("training", "measurement", "made")
_SHARED_OF_MADE = ("device", "versions")


def results_record(
    experiment: Experiment, options: Options, findings: Findings, done: Sequence[Measured], made_in: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that a results file holds.

    Points of plots are there only where nothing was measured: else cells have them, here or where ``cells_in`` says.
    """
    chosen = {key: value for key, value in asdict(options).items() if key not in ("data_root", "processes")}
    record = {
        "format": FORMAT,
        **{key: value for key, value in experiment.as_dict().items() if key not in ("runs_here", "reason", "published")},
        "paper_settings": dict(experiment.settings),
        "settings": chosen,
        "comparable": not options.quick,
        "command": options.command(experiment.name, computed=not done),
        "device": devices(done) if done else describe_device(resolve_device(options.device)),
        "versions": done[-1].made["versions"] if done else software_versions(),
        "date": max(str(one.made["date"]) for one in done) if done else utc_now(),
        "made_in": list(made_in),
        "comparison": [row.as_dict() for row in compare(experiment, findings)],
        "tests": [asdict(test) for test in findings.tests],
        "notes": list(findings.notes),
        "tables": [asdict(block) for block in (*findings.tables, *findings.beside)],
        "panels": [] if done else [panel.as_dict() for panel in findings.panels],
        **_cells(findings, done),
    }
    return dict(_rounded(record))


def results_text(results: Mapping[str, Any]) -> str:
    """The record as JSON: sorted keys, one to a line, and of a list one entry to a line."""
    parts = (f"{_line(key)}: {_value(value)}" for key, value in sorted(results.items()))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_cells(path: Path) -> list[Record]:
    """The cells of a results file, each whole again: ``name``, ``method``, ``training``, ``numbers``...

    Cells that are only named are read from the file beside it that has them: ``OUT/EXPERIMENT/results.json`` as the command
    writes them, or ``EXPERIMENT.json`` as they are kept together; else from ``OUT/cells``. DataError where they are not there.
    """
    results = json.loads(path.read_text(encoding="utf-8"))
    source = results.get("cells_in", "")
    if not source:
        return [merged(results.get("cells_share", {}), cell) for cell in results["cells"]]
    beside = path.parent.parent / source / FILE if path.name == FILE else path.with_name(f"{source}.json")
    known = {cell["name"]: cell for cell in read_cells(beside)} if beside.is_file() else {}
    if path.name == FILE:
        store = CellStore(path.parent.parent / CELLS)
        known |= {name: kept for name in results["cells"] if name not in known and (kept := store.entry(name)) is not None}
    missing = [name for name in results["cells"] if name not in known]
    if missing:
        raise DataError(
            "cells are not in the file that should have them",
            where=str(beside),
            got=f"{len(missing)} missing, the first {missing[0]}" if known else "no such file",
            wanted=f"the {len(results['cells'])} cells of {results['name']}",
            fix=f"twinproof reproduce {source}, with the same --out and --seeds",
        )
    return [known[name] for name in results["cells"]]


def devices(done: Sequence[Measured]) -> str:
    return ", ".join(sorted({str(one.made["device"]) for one in done}))


def _cells(findings: Findings, done: Sequence[Measured]) -> Record:
    """The cells, by name only where another file has them; what they have in common once."""
    if findings.cells_in:
        return {"cells_in": findings.cells_in, "cells_share": {}, "cells": [one.cell.name for one in done]}
    entries = [_entry(one, findings) for one in done]
    parts = [{key: _comparable(key, entry[key]) for key in _SHARED} for entry in entries]
    shared = common(parts)
    return {"cells_in": "", "cells_share": shared, "cells": [without(entry, shared) for entry in entries]}


def _entry(one: Measured, findings: Findings) -> Record:
    entry = one.as_dict()
    return {**entry, "numbers": findings.short.get(one.cell.name, entry["numbers"])}


def _comparable(key: str, value: Record) -> Record:
    """When and how long is a cell's own, even where it happens to be that of another one."""
    return {name: value[name] for name in _SHARED_OF_MADE if name in value} if key == "made" else value


def _rounded(value: Any) -> Any:
    """Every float to 12 digits, which changes no single radius and no epsilon: those have six decimals."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _value(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(_line(entry) for entry in value) + "\n]"
    return _line(value)


def _line(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
