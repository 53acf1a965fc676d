"""Deciding what the user left open, from public facts only, before training starts."""

from __future__ import annotations

import math

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.layers.models.registry import default_network
from twinproof.privacy.accounting import Event, GaussianEvent
from twinproof.privacy.calibration import calibrate_noise_multiplier
from twinproof.privacy.plan import Plan
from twinproof.recipes.config import ResolvedConfig, TrainConfig
from twinproof.recipes.registry import find_recipe

DEFAULT_EPSILON = 3.0
# Large batches suit DP-SGD: the noise is added once for all of them. Decided from the declared (public) number of records.
_BATCHES_PER_EPOCH = 30
_LEAST_BATCH = 256


def spent_on_data(dataset: Dataset) -> list[Event]:
    """What loading the data has already spent: a private estimate of feature ranges, or nothing."""
    scaling = dataset.scaling
    return [GaussianEvent(scaling.spending.noise_multiplier)] if scaling is not None and scaling.spending is not None else []


def resolve(config: TrainConfig, dataset: Dataset) -> ResolvedConfig:
    """``config`` with nothing left open: declared number of records, batch, steps, network and noise multiplier."""
    records = config.records if config.records is not None else len(dataset.train)
    batch_size = config.batch_size or min(records, max(_LEAST_BATCH, round(records / _BATCHES_PER_EPOCH)))
    if batch_size > records:
        raise ConfigError(
            "the batch is larger than the data set",
            where="batch_size",
            got=batch_size,
            wanted=f"at most {records}, the number of training records",
        )
    settled = {
        "records": records,
        "batch_size": batch_size,
        "steps": config.steps if config.steps is not None else max(1, round(config.epochs * records / batch_size)),
        "model": config.model or default_network(dataset.shape),
    }
    if not find_recipe(config.recipe).private:
        settled |= {"epsilon": None, "noise_multiplier": None}
    else:
        _check_delta(config.delta, records)
        if config.noise_multiplier is None:
            settled["epsilon"] = config.epsilon if config.epsilon is not None else DEFAULT_EPSILON
    resolved = ResolvedConfig.model_validate({**config.model_dump(), **settled})
    if resolved.epsilon is None:
        return resolved
    multiplier = calibrate_noise_multiplier(
        resolved.epsilon,
        resolved.delta,
        sample_rate=resolved.sample_rate,
        steps=resolved.steps,
        already=spent_on_data(dataset),
    )
    return resolved.model_copy(update={"noise_multiplier": multiplier})


def plan_of(config: ResolvedConfig) -> Plan:
    """The plan that resolved settings describe; ``performance`` is never looked at."""
    if config.noise_multiplier is None:
        raise ConfigError(
            "there is no plan without noise", where="recipe", got=config.recipe, wanted="a private recipe, resolved"
        )
    return Plan(
        sample_rate=config.sample_rate,
        noise_multiplier=config.noise_multiplier,
        clip_norm=config.clip_norm,
        divisor=float(config.batch_size),
        steps=config.steps,
        delta=config.delta,
    )


def _check_delta(delta: float, records: int) -> None:
    if delta * records >= 1:
        raise ConfigError(
            "delta is too large for this many records",
            where="delta",
            got=delta,
            wanted=f"below 1/{records}: at or above it, publishing a random record would count as private",
            fix=f"use at most {10.0 ** math.floor(math.log10(0.1 / records)):g}",
        )
