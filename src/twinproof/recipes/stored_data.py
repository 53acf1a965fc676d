"""Settings as a released file shows them, and back: a local path is private, its last part is enough for readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.data.config import DataConfig
from twinproof.data.own_files import public_name
from twinproof.data.record import Scaling
from twinproof.data.sources import SOURCES
from twinproof.recipes.config import ResolvedConfig, TrainConfig
from twinproof.settings import parse_settings


def _last_part(path: str | None) -> str | None:
    return None if path is None else public_name(Path(path))


def public_config(config: TrainConfig) -> dict[str, Any]:
    """The settings for ``run.json``: everything, but paths reduced to their last part."""
    stored = config.model_dump(mode="json")
    stored["data"]["source"] = _last_part(stored["data"]["source"])
    stored["data"]["test"] = _last_part(stored["data"]["test"])
    return stored


def located(data: DataConfig) -> dict[str, Any]:
    """The data settings for ``private/``, with whole paths: later commands may be called from another folder."""
    settings = data.model_dump(mode="json")
    for name in ("source", "test"):
        path = settings[name]
        if path is not None and path not in SOURCES and Path(path).expanduser().exists():
            settings[name] = str(Path(path).expanduser().absolute())
    return settings


def restore_config(stored: dict[str, Any], source: dict[str, Any] | None) -> ResolvedConfig:
    """The settings of a run, with the data's place as the owner's private folder (or the caller) tells it."""
    return parse_settings(ResolvedConfig, {**stored, "data": source if source is not None else stored["data"]})


def stored_scaling(description: dict[str, Any]) -> Scaling | None:
    """The bounds a run used, so that loading again neither estimates nor spends."""
    scaling = description.get("scaling")
    if scaling is None:
        return None
    return Scaling.from_dict(scaling)
