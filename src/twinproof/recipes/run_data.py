"""The settings and data of a run: as they are written to its files, and as they are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.checks import parse_settings
from twinproof.data.config import DataConfig
from twinproof.data.load import load, public_name
from twinproof.data.record import Dataset, Scaling
from twinproof.data.sources import SOURCES
from twinproof.errors import ConfigError, RunError
from twinproof.recipes.config import ResolvedConfig, TrainConfig, with_section
from twinproof.runs.layout import DATA, refuse_missing
from twinproof.runs.private_files import load_source
from twinproof.runs.run import Run

_PUBLIC_DATA = "public_data"  # the one setting outside ``data`` that may be a path
_FORMER_FRACTION = "test_fraction"  # in runs of format 1: the share of the records that became the test part by default


def _last_part(path: str | None) -> str | None:
    return None if path is None else public_name(Path(path))


def public_config(config: TrainConfig) -> dict[str, Any]:
    """The settings for ``run.json``, with paths reduced to their last part."""
    stored = config.model_dump(mode="json")
    stored["data"]["source"] = _last_part(stored["data"]["source"])
    stored["data"]["test"] = _last_part(stored["data"]["test"])
    if stored["noise_layer"] is not None:
        stored["noise_layer"][_PUBLIC_DATA] = _last_part(stored["noise_layer"][_PUBLIC_DATA])
    return stored


def located(config: TrainConfig) -> dict[str, Any]:
    """The data settings for ``private/``, with whole paths, because later commands may run in another folder."""
    settings = config.data.model_dump(mode="json")
    for name in ("source", "test"):
        settings[name] = _whole_path(settings[name])
    if config.noise_layer is not None and config.noise_layer.public_data is not None:
        settings[_PUBLIC_DATA] = _whole_path(config.noise_layer.public_data)
    return settings


def _whole_path(path: str | None) -> str | None:
    if path is None or path in SOURCES or not Path(path).expanduser().exists():
        return path
    return str(Path(path).expanduser().absolute())


def restore_config(stored: dict[str, Any], source: dict[str, Any] | None) -> ResolvedConfig:
    """The settings of a run, with the path of the data from its private folder or from the caller."""
    data = stored["data"] if source is None else source
    restored = {**stored, "data": {name: data[name] for name in data if name not in (_PUBLIC_DATA, _FORMER_FRACTION)}}
    if source is not None and _PUBLIC_DATA in source and stored.get("noise_layer") is not None:
        restored["noise_layer"] = {**stored["noise_layer"], _PUBLIC_DATA: source[_PUBLIC_DATA]}
    try:
        return parse_settings(with_section(ResolvedConfig, restored.get("recipe"), restored.get("variant")), restored)
    except ConfigError as error:
        raise RunError(
            "the settings of this run cannot be used",
            where=f"run.json, config (data: private/source.json, where there is one): {error.where}",
            got=error.got,
            wanted=error.wanted,
            fix=error.fix if error.where == "variant" else "restore the files",
        ) from error


def load_again(data: DataConfig, record: dict[str, Any], data_root: Path | None) -> Dataset:
    """The data of the run that ``record`` (run.json) describes. Its feature ranges are reused: nothing is spent again."""
    scaling, former = record["data"].get("scaling"), record["config"]["data"].get(_FORMER_FRACTION)
    bounds = None if scaling is None else Scaling.from_dict(scaling)
    return load(data, root=data_root, scaling=bounds, public_fraction=former)


def load_run_data(run: Run, *, source: str | None = None, data_root: Path | None = None) -> Dataset:
    """The run's data set, from ``source`` if given, else from the path in the run's private folder."""
    refuse_missing(run.root, run.record, DATA)
    config = restore_config(run.record["config"], load_source(run.layout.private)).data
    if source is not None:
        config = config.model_copy(update={"source": source})
    dataset = load_again(config, run.record, data_root)
    run.refuse_other_data(dataset)
    return dataset
