"""The settings of a run: as they are written to its files, and as they are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.checks import parse_settings
from twinproof.data.load import SOURCES, public_name
from twinproof.errors import ConfigError, RunError
from twinproof.recipes.config import ResolvedConfig, TrainConfig, with_section
from twinproof.runs.run import FORMER_FRACTION

_PUBLIC_DATA = "public_data"  # the one setting outside ``data`` that may be a path


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
    restored = {**stored, "data": {name: data[name] for name in data if name not in (_PUBLIC_DATA, FORMER_FRACTION)}}
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
