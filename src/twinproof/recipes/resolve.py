"""Deciding what the user left open, from public facts only, before training starts."""

from __future__ import annotations

import math

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.layers.models.registry import default_network
from twinproof.privacy.accounting import Event, GaussianEvent
from twinproof.privacy.calibration import calibrate_noise_multiplier
from twinproof.privacy.plan import Plan
from twinproof.recipes.config import TrainConfig
from twinproof.recipes.registry import find_recipe

DEFAULT_EPSILON = 3.0


def spent_on_data(dataset: Dataset) -> list[Event]:
    """What loading the data has already spent: a private estimate of feature ranges, or nothing."""
    scaling = dataset.scaling
    return [GaussianEvent(scaling.spending.noise_multiplier)] if scaling is not None and scaling.spending is not None else []


def resolve(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """``config`` with nothing left open: declared number of records, steps, network and noise multiplier."""
    records = config.records if config.records is not None else len(dataset.train)
    if config.batch_size > records:
        raise ConfigError(
            "the batch is larger than the data set",
            where="batch_size",
            got=config.batch_size,
            wanted=f"at most {records}, the number of training records",
        )
    steps = config.steps if config.steps is not None else max(1, round(config.epochs * records / config.batch_size))
    settled = config.model_copy(
        update={"records": records, "steps": steps, "model": config.model or default_network(dataset.shape)}
    )
    if not find_recipe(config.recipe).private:
        return settled.model_copy(update={"epsilon": None, "noise_multiplier": None})
    _check_delta(config.delta, records)
    if config.noise_multiplier is None:
        epsilon = config.epsilon if config.epsilon is not None else DEFAULT_EPSILON
        multiplier = calibrate_noise_multiplier(
            epsilon,
            config.delta,
            sample_rate=config.batch_size / records,
            steps=steps,
            already=spent_on_data(dataset),
        )
        settled = settled.model_copy(update={"epsilon": epsilon, "noise_multiplier": multiplier})
    return settled


def plan_of(config: TrainConfig) -> Plan:
    """The plan that a resolved configuration describes; ``performance`` is never looked at."""
    if config.records is None or config.steps is None or config.noise_multiplier is None:
        raise ConfigError("the settings are not resolved yet", where="noise_multiplier", wanted="resolve() first")
    return Plan(
        sample_rate=config.batch_size / config.records,
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
