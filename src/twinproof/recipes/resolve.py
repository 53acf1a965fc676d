"""Deciding what the user left open, from public facts only, before training starts."""

from __future__ import annotations

import math

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.layers.models.prior import PRIOR_NETWORK, PRIOR_WIDTH, Prior, has_prior
from twinproof.layers.models.with_noise import RedistributionKind
from twinproof.privacy.accounting import Event, GaussianEvent, check_steps
from twinproof.privacy.calibration import calibrate_noise_multiplier
from twinproof.privacy.plan import Plan
from twinproof.recipes.config import ResolvedConfig, TrainConfig, check_settings, with_section
from twinproof.recipes.noise_layer import settled_noise
from twinproof.recipes.registry import find_recipe

DEFAULT_EPSILON = 3.0
DEFAULT_SIGMA = 0.25
REDISTRIBUTION = "redistribution"
"""Purpose, in the ledger and of the key's stream, of a private estimate of the redistribution vector."""

# Large batches suit DP-SGD: the noise is added once for all of them. Decided from the declared (public) number of records.
_BATCHES_PER_EPOCH = 30
_LEAST_BATCH = 256


def spent_on_data(dataset: Dataset) -> list[Event]:
    """What loading the data has already spent: a private estimate of feature ranges, or nothing."""
    scaling = dataset.scaling
    return [GaussianEvent(scaling.spending.noise_multiplier)] if scaling is not None and scaling.spending is not None else []


def redistribution_plan(config: ResolvedConfig) -> Plan | None:
    """The mechanism by which a private recipe estimates r from its training records; None where it does not.

    One step on all records, with the declared number of them as the divisor. A variant with ``unpaid_shares`` takes r without
    any mechanism; its privacy is refuted.
    """
    noise = config.noise_layer
    recipe = find_recipe(config.recipe)
    if noise is None or noise.redistribution is not RedistributionKind.TRAINING or not recipe.private:
        return None
    variant = recipe.variant(config.variant)
    if variant is not None and variant.unpaid_shares:
        return None
    return Plan(
        sample_rate=1.0,
        noise_multiplier=noise.r_noise_multiplier,
        clip_norm=noise.r_clip,
        divisor=float(config.records),
        steps=1,
        delta=config.delta,
    )


def spent_on_redistribution(config: ResolvedConfig) -> list[Event]:
    """What the private estimate of r costs, or nothing."""
    plan = redistribution_plan(config)
    return [] if plan is None else [GaussianEvent(plan.noise_multiplier)]


def resolve(config: TrainConfig, dataset: Dataset) -> ResolvedConfig:
    """``config`` with nothing left open: declared number of records, batch, steps, network, sigma and noise multiplier."""
    check_settings(config)
    records = config.records if config.records is not None else len(dataset.train)
    batch_size = config.batch_size or min(records, max(_LEAST_BATCH, round(records / _BATCHES_PER_EPOCH)))
    if batch_size > records:
        raise ConfigError(
            "the batch is larger than the data set",
            where="batch_size",
            got=batch_size,
            wanted=f"at most {records}, the number of training records",
        )
    steps = config.steps if config.steps is not None else max(1, round(config.epochs * records / batch_size))
    check_steps(steps, "epochs" if config.steps is None else "steps")
    recipe = find_recipe(config.recipe)
    model = config.model or recipe.network_for(config.variant, dataset.shape)
    noise_layer, sigma = None, config.sigma or DEFAULT_SIGMA
    if config.noise_layer is not None:
        variant = recipe.variant(config.variant)
        deviations = None if variant is None else variant.deviations
        noise_layer, sigma = settled_noise(config.noise_layer, dataset.shape, deviations)
    settled = {
        "noise_layer": noise_layer,
        "sigma": sigma,
        "records": records,
        "batch_size": batch_size,
        "steps": steps,
        "model": model,
        "prior": _prior(config, model, dataset.shape),
    }
    if not recipe.private:
        settled |= {"epsilon": None, "noise_multiplier": None}
    else:
        _check_delta(config.delta, records)
        if not recipe.counted(config.variant):
            _refuse_plan(config)
        if config.noise_multiplier is None:
            settled["epsilon"] = config.epsilon if config.epsilon is not None else DEFAULT_EPSILON
    schema = with_section(ResolvedConfig, config.recipe, config.variant)
    resolved = schema.model_validate({**config.model_dump(), **settled})
    if resolved.epsilon is None or not recipe.counted(config.variant):
        return resolved
    multiplier = calibrate_noise_multiplier(
        resolved.epsilon,
        resolved.delta,
        sample_rate=resolved.sample_rate,
        steps=resolved.steps,
        already=[*spent_on_data(dataset), *spent_on_redistribution(resolved)],
    )
    return resolved.model_copy(update={"noise_multiplier": multiplier})


def refuse_more_records(config: ResolvedConfig, dataset: Dataset) -> None:
    """Refuses more training records than were declared: ``records`` is an upper bound, what is missing is never drawn."""
    if len(dataset.train) > config.records:
        raise ConfigError(
            "there are more training records than declared",
            where="records",
            got=f"records = {config.records}, and {len(dataset.train)} training records",
            wanted="an upper bound on the number of training records",
            fix="declare a larger number, which becomes public; or leave it out: then the exact number does",
        )


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
        clip_rule=config.clip_rule,
        clip_r=config.clip_r,
    )


def _refuse_plan(config: TrainConfig) -> None:
    """Refuses the noise of DP-SGD for a variant that takes no such steps."""
    if config.noise_multiplier is not None:
        raise ConfigError(
            f"the {config.variant} variant of this recipe takes no DP-SGD steps",
            where="noise_multiplier",
            got=f"{config.noise_multiplier}, with {config.recipe}",
            wanted="epsilon: what the paper would claim, by which it sizes its own noise",
            fix="leave noise_multiplier out",
        )


def _prior(config: TrainConfig, model: str, shape: tuple[int, ...]) -> Prior:
    """What the network starts from: what is asked for, or what the recipe starts from where there is such a thing."""
    there_is = has_prior(model, shape, config.width)
    if config.prior is Prior.FIGURES and not there_is:
        raise ConfigError(
            "there are no learned weights to start from",
            where="prior",
            got=f"figures, with {model} of width {config.width} for inputs of shape {shape}",
            wanted=f"{PRIOR_NETWORK} of width {PRIOR_WIDTH}, for images of one channel",
            fix=f"leave prior out, or use model={PRIOR_NETWORK} and width={PRIOR_WIDTH}",
        )
    starts = find_recipe(config.recipe).starts_from_prior and there_is
    return config.prior or (Prior.FIGURES if starts else Prior.NONE)


def _check_delta(delta: float, records: int) -> None:
    if delta * records >= 1:
        raise ConfigError(
            "delta is too large for this many records",
            where="delta",
            got=delta,
            wanted=f"below 1/{records}: at or above it, publishing a random record would count as private",
            fix=f"use at most {10.0 ** math.floor(math.log10(0.1 / records)):g}",
        )
