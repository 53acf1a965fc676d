"""The settings of a training run, from files, flags and a recipe's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from twinproof.data.config import DataConfig
from twinproof.errors import ConfigError
from twinproof.recipes.registry import find_recipe
from twinproof.settings import parse_settings
from twinproof.training.performance import Performance

# Below, the accountants overflow and nobody could recompute the epsilon of the run; above, the noise leaves its grid.
SMALLEST_NOISE, LARGEST_NOISE = 0.1, 1e5


class TrainConfig(BaseModel):
    """Every setting of a run. ``None`` means: decided from the others before training starts, and then written down.

    The defaults of ``learning_rate`` and ``epochs`` were chosen by test accuracy on the embedded sets (digits, breast-cancer),
    which are public.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataConfig
    recipe: str
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="target; sets the noise multiplier")
    delta: float = Field(default=1e-5, gt=0, lt=1)
    noise_multiplier: float | None = Field(
        default=None, ge=SMALLEST_NOISE, le=LARGEST_NOISE, allow_inf_nan=False, description="noise over clipping norm"
    )
    clip_norm: float = Field(default=0.1, gt=0, allow_inf_nan=False, description="bound on one record's gradient")
    batch_size: int | None = Field(default=None, ge=1, description="expected records per step; also the constant divisor")
    records: int | None = Field(default=None, ge=1, description="declared (public) number of training records")
    epochs: float = Field(default=40, gt=0, allow_inf_nan=False)
    steps: int | None = Field(default=None, ge=1, description="instead of epochs")
    learning_rate: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    sigma: float = Field(default=0.25, gt=0, le=10, description="smoothing noise, in input units ([0, 1])")
    copies: int = Field(default=2, ge=0, le=64, description="noisy copies of each record beside the original")
    model: str | None = None
    width: int = Field(default=1, ge=1, le=64, description="multiplies the network's hidden sizes")
    seed: int | None = Field(default=None, ge=0, description="makes the run repeatable and therefore not private")
    performance: Performance = Performance()


class ResolvedConfig(TrainConfig):
    """Settings with nothing left open, as they are carried out and written down."""

    batch_size: int
    records: int
    steps: int
    model: str

    @property
    def sample_rate(self) -> float:
        """Probability with which a step takes each record."""
        return self.batch_size / self.records


def parse_train_config(*layers: Mapping[str, Any]) -> TrainConfig:
    """Settings from several layers, later ones first in rank, over the defaults of the recipe they name."""
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer)
    recipe = merged.get("recipe", "dpcert-gaussian")
    merged = _merge({"recipe": recipe, **find_recipe(str(recipe)).defaults}, merged)
    config = parse_settings(TrainConfig, merged)
    if config.epsilon is not None and config.noise_multiplier is not None:
        raise ConfigError(
            "the noise is set twice",
            where="epsilon, noise_multiplier",
            got=f"epsilon = {config.epsilon}, noise_multiplier = {config.noise_multiplier}",
            wanted="one of them: the other follows from it",
            fix="leave one out",
        )
    return config


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            # A copy all the way down: a later layer must not be merged into what the caller gave.
            into[key] = _merge({}, value) if isinstance(value, Mapping) else value
    return into
