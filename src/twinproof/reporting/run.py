"""The report of a run on disk: verified anew, with examples where the data can be found."""

from __future__ import annotations

from pathlib import Path

from twinproof.auditing.verify import verify_run
from twinproof.data.record import Dataset
from twinproof.errors import UserError, system_faults
from twinproof.recipes.run_data import load_run_data
from twinproof.reporting.write import ReportFiles, write_report
from twinproof.runs.layout import COMPLETE, read_run_json
from twinproof.runs.run import Run
from twinproof_verify import Originals


@system_faults("run the same command again")
def report_run(root: Path, *, source: str | None = None, data_root: Path | None = None, examples: bool = False) -> ReportFiles:
    """Verifies the run and writes its report. Examples need the test data; without them the report says so.

    Test records of your own data, as they are and attacked, are shown only with ``examples``.
    """
    complete = read_run_json(root).get("state") == COMPLETE
    dataset: Dataset | None = None
    if complete:
        try:
            dataset = load_run_data(Run.open(root), source=source, data_root=data_root)
        except UserError:
            # The report is about the evidence in the run; absent data cost it the example images only. A source that the
            # user named by hand must work.
            if source is not None:
                raise
    originals = None if dataset is None else Originals(dataset.test.inputs, dataset.test.labels)
    verification = verify_run(root, originals=originals).as_dict() if complete else None
    if verification is not None:
        # An earlier report says nothing about the run: written again, the report is the same.
        left = [line for line in verification["not_checked"] if not line.startswith(("report.html:", "report.json:"))]
        verification["not_checked"] = left
    return write_report(root, dataset=dataset, verification=verification, examples=examples)
