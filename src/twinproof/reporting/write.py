"""Writes reports: one run into its own folder, several runs into a file of the user's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, system_faults
from twinproof.files import make_folder, write_atomic, write_json
from twinproof.reporting.comparison import comparison_page, differences, distinct_names
from twinproof.reporting.facts import load_facts
from twinproof.reporting.page import run_page
from twinproof.reporting.twin import FORMAT, twin
from twinproof.runs.layout import RunLayout


@dataclass(frozen=True)
class ReportFiles:
    """Where the report for people and its twin for machines were written."""

    html: Path
    json: Path


@system_faults("write the report again")
def write_report(
    root: Path,
    *,
    dataset: Dataset | None = None,
    verification: Mapping[str, Any] | None = None,
    examples: bool = False,
) -> ReportFiles:
    """Writes ``report.html`` and ``report.json`` into the run in ``root``.

    ``dataset`` gives the example inputs, ``verification`` (the verifier's ``ok``, ``problems``, ``checks``) the line that says
    whether the run was checked; both may be absent. ``examples`` shows test records of a user's own data too.

    Guarantees
        Reads only the run's released files and the test part of ``dataset``. Records of data that are not a known public set
        appear only with ``examples``. The page loads nothing and runs nothing; all text
        from the run is escaped. The same run gives the same bytes. Both files are complete before either is replaced.
    """
    facts = load_facts(root, verification, examples=examples)
    page, record = run_page(facts, dataset), twin(facts, dataset)
    layout = RunLayout(root)
    return _write(layout.report_html, layout.report_json, page, record)


@system_faults("run the same command again")
def write_comparison(roots: Sequence[Path], out: Path) -> ReportFiles:
    """Writes a comparison of several runs to ``out`` (an ``.html`` file, or a folder) and its twin beside it."""
    if not roots:
        raise ConfigError("there is nothing to compare", got="no runs", wanted="at least one run directory")
    runs = [load_facts(root) for root in roots]
    html = out if out.suffix == ".html" else out / "comparison.html"
    records = [{**twin(run), "run": name} for name, run in zip(distinct_names(runs), runs, strict=True)]
    page = comparison_page(runs)
    make_folder(html.parent, "the comparison")
    return _write(html, html.with_suffix(".json"), page, {"format": FORMAT, "runs": records, "differences": differences(runs)})


def _write(html: Path, json: Path, page: str, record: dict[str, Any]) -> ReportFiles:
    write_json(json, record)
    write_atomic(html, page.encode())
    return ReportFiles(html=html, json=json)
