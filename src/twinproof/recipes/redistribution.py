"""The redistribution vector r from records: which share of a layer's noise each of its outputs h_k gets.

By gradients (Phan et al. 2019, Eq. 7) shares are proportional to mean |dL/dh_k|^beta. By relevance (Phan et al. 2017) scales
are proportional to 1 / mean |R_k|^beta, where R is the relevance of h for the score of the label, of length 1 for each record.
Both are computed at the random initial weights, because a trained network would have to be public or paid for itself. For
public records, or a recipe without privacy, the exact mean is used. For the training records of a private recipe the mean is
released by one Gaussian mechanism, which the ledger counts before a record is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from twinproof.compute.devices import repeatable_convolutions
from twinproof.data.load import SOURCES, load
from twinproof.data.record import DataConfig, Dataset, Split
from twinproof.errors import DataError, RunError
from twinproof.keys import Key
from twinproof.layers.module_state import evaluation_mode
from twinproof.layers.noise import FixedSpread
from twinproof.layers.noise_placement import NoiseSplit, RedistributionKind, split_at_noise, split_at_two_noises
from twinproof.layers.relevance import layers_with_rules, relevance
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Plan, flat_clip_weights
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.recipe import Shares
from twinproof.recipes.resolve import REDISTRIBUTION, redistribution_plan, refuse_training_records
from twinproof.training.passes import DeviceRecords, Pass
from twinproof.training.per_example.paths import RecordLoss

_ROWS = 256
# The share of named public data without a test part that is left out; changing it would change old runs' r.
_UNUSED_SHARE = 0.2
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class PublicRecords:
    """Records that the owner declares public, with the levels they are stored on."""

    split: Split
    levels: int


def public_records(config: ResolvedConfig, dataset: Dataset, data_root: Path | None) -> PublicRecords | None:
    """The records that ``redistribution=public`` computes r from: the data it names, else the test set. None for other kinds.

    Features of named data are scaled with the run's bounds. A private recipe refuses data that are its training records.
    """
    noise = config.noise_layer
    if noise is None or noise.redistribution is not RedistributionKind.PUBLIC:
        return None
    if noise.public_data is None:
        return PublicRecords(dataset.test, dataset.levels)
    if noise.public_data in SOURCES:  # it has its own labels and classes
        source = DataConfig(source=noise.public_data)
    else:
        source = config.data.model_copy(update={"source": noise.public_data, "test": None, "public_fraction": None})
    public = load(source, root=data_root, scaling=dataset.scaling, public_fraction=_UNUSED_SHARE)
    if public.shape != dataset.shape or len(public.classes) != len(dataset.classes):
        raise DataError(
            "the public data do not fit the data of the run",
            where="noise_layer.public_data",
            got=f"{public.name}: shape {public.shape}, {len(public.classes)} classes",
            wanted=f"shape {dataset.shape}, {len(dataset.classes)} classes",
            fix="name another data set, or leave public_data out: r then comes from the test set",
        )
    if config.spec.private:
        refuse_training_records(public.train, dataset.train, public.name)
    return PublicRecords(public.train, public.levels)


def refuse_network(config: ResolvedConfig, network: nn.Module) -> None:
    """Refuses a network for which shares cannot be computed."""
    split = split_at_noise(network) if config.spec.shares is Shares.RELEVANCE else None
    if split is not None and isinstance(split.noise.spread, FixedSpread):
        layers_with_rules(split.after)


def redistribute(
    config: ResolvedConfig, network: nn.Module, dataset: Dataset, public: PublicRecords | None, key: Key, ledger: Ledger
) -> None:
    """Fills in the scales of a network whose r comes from records; other networks stay as they are.

    Guarantees
        A private recipe reads a training record only if the ledger on the disk counts it. Everything random follows from the
        run's key, so that a repetition after a kill releases the same numbers and costs nothing more.
    """
    plan = redistribution_plan(config)
    if plan is not None:
        _refuse_unpaid(ledger, plan)
    if split_at_two_noises(network) is not None:
        return  # noise at both places is equal for all outputs
    split = split_at_noise(network)
    spread = None if split is None else split.noise.spread
    if config.noise_layer is None or split is None or not isinstance(spread, FixedSpread):
        return
    source = public or PublicRecords(dataset.train, dataset.levels)
    records = DeviceRecords(source.split, source.levels, spread.scales.device)
    recipe, beta, alone = config.spec, config.noise_layer.beta, plan is not None
    with evaluation_mode(network), repeatable_convolutions(records.device):
        if recipe.shares is Shares.RELEVANCE:
            parts, scales = relevances(split, records, beta, alone=alone), scales_against
        else:
            parts, scales = influences(split, records, recipe.loss, beta, alone=alone), scales_from
        mean = exact_mean(parts) if plan is None else private_mean(parts, plan, key, spread.coordinates)
    with torch.no_grad():
        spread.scales.copy_(scales(mean, config.noise_layer.floor))


def influences(split: NoiseSplit, records: DeviceRecords, loss: RecordLoss, beta: float, *, alone: bool) -> Iterator[Tensor]:
    """|dL/dh|^beta of each record, some records at a time: (records, K) in float64. No noise is drawn.

    With ``alone`` every record goes through the network by itself (``vmap``), so that its vector depends on no other record.
    The trial of the per-example paths cannot show that, because it runs in training mode. Otherwise rows go through in
    batches, which any network supports.
    """
    for batch in records.passes(torch.arange(len(records), device=records.device), _ROWS):
        gradient = _slopes_alone(split, batch, loss) if alone else _slopes(split, batch, loss)
        yield gradient.flatten(1)[batch.present].double().abs().pow(beta)


def _slopes(split: NoiseSplit, batch: Pass, loss: RecordLoss) -> Tensor:
    """dL/dh of all rows of a pass, in one batch."""
    hidden = _hidden(split, batch.inputs).requires_grad_()
    losses: Tensor = torch.func.vmap(loss, randomness="error")(split.after(hidden).unsqueeze(1), batch.labels)
    return torch.autograd.grad(losses.sum(), hidden)[0]


def _slopes_alone(split: NoiseSplit, batch: Pass, loss: RecordLoss) -> Tensor:
    """dL/dh of all rows of a pass, each the gradient of a batch of one."""

    def slope(inputs: Tensor, label: Tensor) -> Tensor:
        found: Tensor = torch.func.grad(lambda hidden: loss(split.after(hidden), label))(_hidden(split, inputs.unsqueeze(0)))
        return found.squeeze(0)

    with torch.no_grad():
        slopes: Tensor = torch.func.vmap(slope, randomness="error")(batch.inputs, batch.labels)
    return slopes


def relevances(split: NoiseSplit, records: DeviceRecords, beta: float, *, alone: bool) -> Iterator[Tensor]:
    """|R|^beta of each record, scaled to length 1, some records at a time: (records, K) in float64. No noise is drawn.

    R is the relevance of the first layer's outputs for the score of the record's label. Vectors are normalised because scores
    at random weights have any size; a relevance of zero stays zero. ``alone`` is that of ``influences``.
    """

    def found(inputs: Tensor, labels: Tensor) -> Tensor:
        return relevance(split.after, _hidden(split, inputs), labels)

    single = torch.func.vmap(lambda one, label: found(one.unsqueeze(0), label.unsqueeze(0)).squeeze(0), randomness="error")
    for batch in records.passes(torch.arange(len(records), device=records.device), _ROWS):
        with torch.no_grad():
            made: Tensor = (single if alone else found)(batch.inputs, batch.labels)
        rows = made.flatten(1)[batch.present].double().abs()
        # Divided first: a power of large numbers is not finite.
        powers = (rows / rows.amax(dim=1, keepdim=True).clamp_min(_TINY)).pow(beta)
        yield powers / powers.norm(dim=1, keepdim=True).clamp_min(_TINY)


def _hidden(split: NoiseSplit, inputs: Tensor) -> Tensor:
    """What the noise is added to: the first layer's outputs, or the inputs themselves."""
    if split.before is None:
        return inputs.clone()  # a gradient will be asked of it
    with torch.no_grad():
        hidden: Tensor = split.before(inputs.flatten(1) if split.flattens else inputs)
    return hidden


def exact_mean(parts: Iterable[Tensor]) -> Tensor:
    """The mean over all records without NaN or infinite values."""
    total, count = torch.zeros(()), 0
    for part in parts:
        kept = part[part.isfinite().all(dim=1)]
        total, count = total.to(part.device) + kept.sum(dim=0), count + len(kept)
    return total / max(count, 1)


def private_mean(parts: Iterable[Tensor], plan: Plan, key: Key, coordinates: int) -> Tensor:
    """The sum of clipped vectors with noise, over the declared number of records.

    Guarantees
        One Gaussian mechanism with the plan's noise multiplier, for one record replaced by nothing, provided that each row of
        ``parts`` depends on one record (``influences`` with ``alone``). Every record adds a vector of l2 norm at most
        ``plan.clip_norm``, rounding included (``clipped_steps``). The noise has deviation noise_multiplier * clip_norm, is
        rounded to the same grid as in ``PrivateExecution`` (docs/decisions/0003), and comes from a key stream that nothing
        else reads. Sums of whole grid steps are exact in float64, so that neither their order nor the device matters.
    """
    total = torch.zeros(coordinates, dtype=torch.float64)
    for part in parts:
        total += clipped_steps(part, plan).sum(dim=0).cpu()
    normals = torch.from_numpy(key.normals(REDISTRIBUTION, count=coordinates))
    noise = torch.round(normals * (plan.noise_multiplier * plan.clip_norm / plan.grid))
    return (total + noise) * (plan.grid / plan.divisor)


def clipped_steps(vectors: Tensor, plan: Plan) -> Tensor:
    """Each record's vector (rows of ``vectors``), clipped and rounded to whole steps of the plan's grid.

    The norm of a row, times the grid, is at most ``plan.clip_norm``: the clipping threshold leaves room for the rounding. A row
    with NaN or infinite values becomes zero.
    """
    weights = flat_clip_weights(vectors.square().sum(dim=1), plan.clip_threshold(vectors.shape[1])).unsqueeze(1)
    return torch.round(torch.where(weights > 0, vectors * weights, 0) / plan.grid)


def scales_from(mean: Tensor, floor: float) -> Tensor:
    """sqrt(K r), float32: shares proportional to ``mean``, none below ``floor`` times the mean share before normalising.

    Entries that noise made negative count as the floor. If no entry is above zero, all shares are equal.
    """
    kept, average = _positive(mean)
    if average is None:
        return torch.ones(mean.shape, dtype=torch.float32)
    lifted = kept.clamp_min(floor * average)
    return (lifted / lifted.mean()).sqrt().float()


def scales_against(mean: Tensor, floor: float) -> Tensor:
    """sqrt(K r), float32: scales proportional to 1 / ``mean``, with no entry of it below ``floor`` times its average.

    So the epsilon of each output is proportional to its relevance, because Laplace noise of scale 1 / epsilon gives epsilon.
    Entries that noise made negative count as the floor. If no entry is above zero, all shares are equal.
    """
    kept, average = _positive(mean)
    if average is None:
        return torch.ones(mean.shape, dtype=torch.float32)
    inverse = (kept / average).clamp_min(floor).reciprocal()
    return (inverse / inverse.square().mean().sqrt()).float()


def _positive(mean: Tensor) -> tuple[Tensor, Tensor | None]:
    """The entries above zero and their average, None if that is not a positive number."""
    kept = mean.double().clamp_min(0)
    average = kept.mean()
    return kept, average if torch.isfinite(average) and average > 0 else None


def _refuse_unpaid(ledger: Ledger, plan: Plan) -> None:
    paid = {"noise_multiplier": plan.noise_multiplier, "purpose": REDISTRIBUTION}
    if not any(entry.kind == "gaussian" and entry.body == paid for entry in ledger.entries):
        raise RunError(
            "the ledger does not count the private estimate of r",
            where="ledger.jsonl",
            got="no such event",
            wanted=f"gaussian, purpose {REDISTRIBUTION}, noise multiplier {plan.noise_multiplier}",
            fix="restore the ledger; a run whose ledger was changed cannot be continued",
        )
