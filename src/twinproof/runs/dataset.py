"""The data of a run, loaded again with the bounds it was trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.checks import parse_settings
from twinproof.data.config import DataConfig
from twinproof.data.load import load
from twinproof.data.record import Dataset, Scaling
from twinproof.errors import ConfigError, RunError
from twinproof.runs.layout import DATA, refuse_missing
from twinproof.runs.private_files import load_source
from twinproof.runs.run import Run

FORMER_FRACTION = "test_fraction"  # in runs of format 1: set aside where there was no test part, without being asked for
_NOT_OF_DATA = ("public_data", FORMER_FRACTION)


def load_again(data: DataConfig, record: dict[str, Any], data_root: Path | None) -> Dataset:
    """The data of the run that ``record`` (run.json) describes: its bounds are used again, nothing is estimated or spent."""
    scaling, former = record["data"].get("scaling"), record["config"]["data"].get(FORMER_FRACTION)
    bounds = None if scaling is None else Scaling.from_dict(scaling)
    return load(data, root=data_root, scaling=bounds, public_fraction=former)


def load_run_data(run: Run, *, source: str | None = None, data_root: Path | None = None) -> Dataset:
    """The run's data set: from ``source`` if given, else from where the owner's private folder says it lies."""
    refuse_missing(run.root, run.record, DATA)
    stored = load_source(run.layout.private) or run.record["config"]["data"]
    try:
        settings = parse_settings(DataConfig, {name: stored[name] for name in stored if name not in _NOT_OF_DATA})
    except ConfigError as error:
        raise RunError(
            "the data settings of this run cannot be used",
            where=f"run.json, config.data (or private/source.json): {error.where}",
            got=error.got,
            wanted=error.wanted,
            fix="restore the files",
        ) from error
    dataset = load_again(settings if source is None else settings.model_copy(update={"source": source}), run.record, data_root)
    run.refuse_other_data(dataset)
    return dataset
