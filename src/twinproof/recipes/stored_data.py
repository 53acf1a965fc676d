"""Settings as a released file shows them, and back: a local path is private, its last part is enough for readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.data.own_files import public_name
from twinproof.data.record import Scaling
from twinproof.data.sources import SOURCES
from twinproof.recipes.config import ResolvedConfig, TrainConfig
from twinproof.settings import parse_settings

_PUBLIC_DATA = "public_data"  # the one setting outside ``data`` that may be a path


def _last_part(path: str | None) -> str | None:
    return None if path is None else public_name(Path(path))


def public_config(config: TrainConfig) -> dict[str, Any]:
    """The settings for ``run.json``: everything, but paths reduced to their last part."""
    stored = config.model_dump(mode="json")
    stored["data"]["source"] = _last_part(stored["data"]["source"])
    stored["data"]["test"] = _last_part(stored["data"]["test"])
    if stored["noise_layer"] is not None:
        stored["noise_layer"][_PUBLIC_DATA] = _last_part(stored["noise_layer"][_PUBLIC_DATA])
    return stored


def located(config: TrainConfig) -> dict[str, Any]:
    """The data settings for ``private/``, with whole paths: later commands may be called from another folder."""
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
    """The settings of a run, with the data's place as the owner's private folder (or the caller) tells it."""
    if source is None:
        return parse_settings(ResolvedConfig, stored)
    restored = {**stored, "data": {name: value for name, value in source.items() if name != _PUBLIC_DATA}}
    if _PUBLIC_DATA in source and stored.get("noise_layer") is not None:
        restored["noise_layer"] = {**stored["noise_layer"], _PUBLIC_DATA: source[_PUBLIC_DATA]}
    return parse_settings(ResolvedConfig, restored)


def stored_scaling(description: dict[str, Any]) -> Scaling | None:
    """The bounds a run used, so that loading again neither estimates nor spends."""
    scaling = description.get("scaling")
    if scaling is None:
        return None
    return Scaling.from_dict(scaling)
