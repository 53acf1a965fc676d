"""Writes reports: of one run into its own folder, of several runs into a file of the user's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.auditing.verify import verify_run
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, UserError, system_faults
from twinproof.files import make_folder, write_atomic, write_json
from twinproof.reporting.comparison import comparison_page, differences, distinct_names
from twinproof.reporting.facts import load_facts
from twinproof.reporting.json_copy import FORMAT, json_copy
from twinproof.reporting.page import run_page
from twinproof.runs.layout import COMPLETE, RunLayout, read_run_json
from twinproof.runs.run import Run, load_run_data
from twinproof_verify import Originals


@dataclass(frozen=True)
class ReportFiles:
    """Where the page and its JSON copy were written."""

    html: Path
    json: Path


@system_faults("run the same command again")
def report_run(
    run: Run | str | Path, *, source: str | None = None, data_root: str | Path | None = None, examples: bool = False
) -> ReportFiles:
    """Verifies a run, or the directory of one, and writes its report. Without the test data it has no examples, and says so.

    Test records of your own data, as they are and attacked, are shown only with ``examples``.
    """
    root = run.root if isinstance(run, Run) else Path(run)
    if read_run_json(root).get("state") != COMPLETE:
        return write_report(root, examples=examples)
    dataset: Dataset | None = None
    try:
        dataset = load_run_data(Run.open(root), source=source, data_root=None if data_root is None else Path(data_root))
    except UserError:
        # Without the data a report lacks only the examples; but a source that the user named must work.
        if source is not None:
            raise
    originals = None if dataset is None else Originals(dataset.test.inputs, dataset.test.labels)
    verification = verify_run(root, originals=originals).as_dict()
    # An earlier report says nothing about the run: written again, the report is the same.
    left = [line for line in verification["not_checked"] if not line.startswith(("report.html:", "report.json:"))]
    return write_report(root, dataset=dataset, verification={**verification, "not_checked": left}, examples=examples)


@system_faults("write the report again")
def write_report(
    root: str | Path,
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
    facts = load_facts(Path(root), verification, examples=examples)
    layout = RunLayout(Path(root))
    return _write(layout.report_html, layout.report_json, run_page(facts, dataset), json_copy(facts, dataset))


@system_faults("run the same command again")
def write_comparison(roots: Sequence[str | Path], out: str | Path) -> ReportFiles:
    """Writes a comparison of several runs to ``out`` (an ``.html`` file, or a folder) and its JSON copy beside it."""
    if not roots:
        raise ConfigError("there is nothing to compare", got="no runs", wanted="at least one run directory")
    out = Path(out)
    html = out if out.suffix == ".html" else out / "comparison.html"
    runs = [load_facts(Path(root)) for root in roots]
    records = [{**json_copy(run), "run": name} for name, run in zip(distinct_names(runs), runs, strict=True)]
    page = comparison_page(runs)
    make_folder(html.parent, "the comparison")
    return _write(html, html.with_suffix(".json"), page, {"format": FORMAT, "runs": records, "differences": differences(runs)})


def _write(html: Path, json: Path, page: str, record: dict[str, Any]) -> ReportFiles:
    write_json(json, record)
    write_atomic(html, page.encode())
    return ReportFiles(html=html, json=json)
