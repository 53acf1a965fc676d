"""Deciding what the user left open, from public facts only, before training starts."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import numpy as np

from twinproof.data.record import Dataset, Split
from twinproof.errors import ConfigError, DataError
from twinproof.layers.networks import PRIOR_NETWORK, PRIOR_SIZES, PRIOR_WIDTH, Prior, has_prior
from twinproof.layers.noise_placement import RedistributionKind
from twinproof.privacy.accounting import Event, GaussianEvent, calibrate_noise_multiplier, check_steps
from twinproof.privacy.plan import Plan
from twinproof.recipes.config import ResolvedConfig, TrainConfig, check_settings, with_section
from twinproof.recipes.noise_layer import settled_noise

DEFAULT_EPSILON = 3.0
DEFAULT_SIGMA = 0.25
REDISTRIBUTION = "redistribution"
"""Purpose, in the ledger and of the key's stream, of a private estimate of the redistribution vector."""

# Large batches suit DP-SGD: the noise is added once for all of them. Decided from the declared (public) number of records.
_LEAST_BATCH = 256


def spent_on_data(dataset: Dataset) -> list[Event]:
    """What loading the data has already spent: the private estimate of feature ranges, where there is one."""
    scaling = dataset.scaling
    return [GaussianEvent(scaling.spending.noise_multiplier)] if scaling is not None and scaling.spending is not None else []


def redistribution_plan(config: ResolvedConfig) -> Plan | None:
    """The mechanism by which a private recipe estimates r from its training records; None where it does not.

    One step on all records, with their declared number as the divisor. A variant with ``unpaid_shares`` uses no mechanism; its
    privacy is refuted.
    """
    noise = config.noise_layer
    if noise is None or noise.redistribution is not RedistributionKind.TRAINING:
        return None
    if not config.spec.private or config.spec.variant(config.variant).unpaid_shares:
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
    """Fills in what was left open: records, batch size, steps, network, sigma, prior and noise multiplier."""
    check_settings(config)
    records = config.records if config.records is not None else len(dataset.train)
    recipe = config.spec
    batch_size = config.batch_size or min(records, max(_LEAST_BATCH, round(records / recipe.start.batches_per_epoch)))
    if batch_size > records:
        raise ConfigError(
            "the batch is larger than the data set",
            where="batch_size",
            got=batch_size,
            wanted=f"at most {records}, the number of training records",
        )
    steps = config.steps if config.steps is not None else max(1, round(config.epochs * records / batch_size))
    check_steps(steps, "epochs" if config.steps is None else "steps")
    model = config.model or recipe.network_for(config.variant, dataset.shape)
    noise_layer, sigma = None, config.sigma or DEFAULT_SIGMA
    if config.noise_layer is not None:
        noise_layer, sigma = settled_noise(config.noise_layer, dataset.shape, recipe.variant(config.variant).deviations)
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
        if config.noise_multiplier is not None and not recipe.counted(config.variant):
            raise ConfigError(
                f"the {config.variant} variant of this recipe takes no DP-SGD steps",
                where="noise_multiplier",
                got=f"{config.noise_multiplier}, with {config.recipe}",
                wanted="epsilon: what the paper would claim, by which it sizes its own noise",
                fix="leave noise_multiplier out",
            )
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
    """Refuses more training records than were declared: ``records`` is an upper bound."""
    if len(dataset.train) > config.records:
        raise ConfigError(
            "there are more training records than declared",
            where="records",
            got=f"records = {config.records}, and {len(dataset.train)} training records",
            wanted="an upper bound on the number of training records",
            fix="declare a larger number, which becomes public; or leave it out, and the exact number becomes public",
        )


def plan_of(config: ResolvedConfig) -> Plan:
    """The plan that resolved settings describe. ``performance`` is not read."""
    if config.noise_multiplier is None:
        raise ConfigError(
            "there is no privacy plan without noise", where="recipe", got=config.recipe, wanted="a private recipe, resolved"
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


def _prior(config: TrainConfig, model: str, shape: tuple[int, ...]) -> Prior:
    """The weights that the network starts from: the ones asked for, else the recipe's where this network has any."""
    available = has_prior(model, shape, config.width)
    if config.prior is Prior.FIGURES and not available:
        raise ConfigError(
            "there are no learned weights to start from",
            where="prior",
            got=f"figures, with {model} of width {config.width} for inputs of shape {shape}",
            wanted=f"{model} of width 1, for images of one channel and 28x28"
            if model in PRIOR_SIZES
            else f"{PRIOR_NETWORK} of width {PRIOR_WIDTH}, for images of one channel",
            fix=f"leave prior out, or use model={PRIOR_NETWORK} and width={PRIOR_WIDTH}",
        )
    return config.prior or (Prior.FIGURES if available and config.spec.start.from_prior else Prior.NONE)


def _check_delta(delta: float, records: int) -> None:
    if delta * records >= 1:
        raise ConfigError(
            "delta is too large for this many records",
            where="delta",
            got=delta,
            wanted=f"below 1/{records}: at or above it, publishing a random record would count as private",
            fix=f"use at most {10.0 ** math.floor(math.log10(0.1 / records)):g}",
        )


# A few equal inputs are chance (blank pictures, coarse features); a tenth of a set is a copy, a part or a superset of it.
_CHANCE = 0.1


class OverlapWarning(UserWarning):
    """Test records, which are public, have the same input as training records."""


def check_test_part(dataset: Dataset) -> None:
    """Refuses a test part equal to the training part, and warns about single records in both. Known data sets pass.

    The number in the warning depends on the training records, so it is shown to the owner and never written to a file.
    """
    if dataset.public:
        return
    ours, theirs = Counter(_inputs(dataset.train)), Counter(_inputs(dataset.test))
    if ours == theirs:  # with equal counts: a coarse table may well have the same few inputs on both sides
        raise DataError(
            "the test records are the training records",
            where="data.test",
            got=f"{dataset.name}: the same {len(dataset.test)} inputs for training and for testing",
            wanted="different records, because test records are public and training records are not",
            fix="name other test records, or leave out `test` and set public_fraction",
        )
    shared = sum(count for row, count in theirs.items() if row in ours)
    if shared:
        warnings.warn(
            f"{shared} of {len(dataset.test)} test records have the same input as a training record. Unless that is chance, as "
            "with coarse features, these training records are public and the accuracy is too high. This number depends on the "
            "training records: do not publish it",
            OverlapWarning,
            stacklevel=2,
        )


def refuse_training_records(public: Split, training: Split, name: str) -> None:
    """Refuses public data that share more inputs with the training records than chance explains.

    Guarantees
        Accepted data have at most a tenth of their inputs in common with the training records, and the other way round, counted
        by equal stored inputs. Whether the rest is public is the owner's word.
    """
    ours, theirs = _inputs(training), _inputs(public)
    known, members = set(ours), set(theirs)
    taken, copied = (sum(row in other for row in rows) / len(rows) for rows, other in ((ours, members), (theirs, known)))
    if max(taken, copied) > _CHANCE:
        raise DataError(
            "the public data hold training records",
            where="noise_layer.public_data",
            got=f"{name}: {copied:.0%} of its inputs are training inputs, and {taken:.0%} of those are in it",
            wanted="other records, none of which is trained on: what is computed from them is released and nothing pays for it",
            fix="name other data, or use redistribution learned, or training, which pays",
        )


def _inputs(split: Split) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(split.inputs)]
