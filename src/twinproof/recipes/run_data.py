"""The data of a finished run, loaded again with the bounds it was trained with."""

from __future__ import annotations

from pathlib import Path

from twinproof.data.record import Dataset
from twinproof.recipes.stored_data import load_again, restore_config
from twinproof.runs.layout import refuse_missing
from twinproof.runs.private_files import load_source
from twinproof.runs.run import Run
from twinproof.runs.run_model import DATA


def load_run_data(run: Run, *, source: str | None = None, data_root: Path | None = None) -> Dataset:
    """The run's data set: from ``source`` if given, else from where the owner's private folder says it lies."""
    refuse_missing(run.root, run.record, DATA)
    config = restore_config(run.record["config"], load_source(run.layout.private)).data
    if source is not None:
        config = config.model_copy(update={"source": source})
    dataset = load_again(config, run.record, data_root)
    run.refuse_other_data(dataset)
    return dataset
