"""A results file: what was asked, found and measured, with an entry to a line, so that it stays small and can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import compare
from twinproof.papers.effort import Effort
from twinproof.papers.experiment import Experiment
from twinproof.papers.findings import Findings
from twinproof.runs.environment import software_versions, utc_now
from twinproof.training.device import describe_device, resolve_device

FORMAT = 2


def results_record(
    experiment: Experiment, effort: Effort, findings: Findings, done: Sequence[Measured], made_in: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that a results file holds. Points of plots are there only where nothing was measured: else cells have them."""
    chosen = {key: value for key, value in asdict(effort).items() if key not in ("data_root", "processes")}
    return {
        "format": FORMAT,
        **{key: value for key, value in experiment.as_dict().items() if key not in ("runs_here", "reason", "published")},
        "paper_settings": dict(experiment.settings),
        "settings": chosen,
        "comparable": not effort.quick,
        "command": effort.command(experiment.name, computed=not done),
        "device": devices(done) if done else describe_device(resolve_device(effort.device)),
        "versions": done[-1].made["versions"] if done else software_versions(),
        "date": max(str(one.made["date"]) for one in done) if done else utc_now(),
        "made_in": list(made_in),
        "comparison": [row.as_dict() for row in compare(experiment, findings)],
        "tests": [test.as_dict() for test in findings.tests],
        "notes": list(findings.notes),
        "tables": [asdict(block) for block in findings.tables],
        "panels": [] if done else [panel.as_dict() for panel in findings.panels],
        "cells": [one.as_dict() for one in done],
    }


def results_text(results: Mapping[str, Any]) -> str:
    """The record as JSON: sorted keys, one to a line, and of a list one entry to a line."""
    parts = (f"{_line(key)}: {_value(value)}" for key, value in sorted(results.items()))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def devices(done: Sequence[Measured]) -> str:
    """The machines that the cells were made on."""
    return ", ".join(sorted({str(one.made["device"]) for one in done}))


def _value(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(_line(entry) for entry in value) + "\n]"
    return _line(value)


def _line(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
