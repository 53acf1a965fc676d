"""A run's source of gradients: its recipe's loss and copies, its plan, and how much of it fits into one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.randomness import Key
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.own_path import OwnTrial, own_path, per_example_path
from twinproof.recipes.registry import find_recipe, recipe_plugins
from twinproof.recipes.resolve import plan_of
from twinproof.training.batching import Batching
from twinproof.training.device_memory import records_that_fit
from twinproof.training.distributed.ranks import ALONE, Ranks
from twinproof.training.distributed.shared_sums import SharedPlainGradients, SharedPrivateGradients
from twinproof.training.gradient_source import GradientSource, PlainGradients, PrivateGradients
from twinproof.training.moved_copies import WarmedUp, moved_copies_in
from twinproof.training.pass_mode import layers_draw, pass_mode
from twinproof.training.per_example.path import PerExamplePath, trainable_parameters
from twinproof.training.per_example.registry import rule_plugins
from twinproof.training.performance import physical_batch_size
from twinproof.training.records import DeviceRecords
from twinproof.training.step_sums import ClippedPass

# Larger passes gain nothing on any device, and their scratch memory is better left to others.
_MOST_ROWS = 32_768
# Passes are cut for this many cores at least, so that one core and two give the same bits.
_FEWEST_WORKERS = 2


def gradient_source(
    config: ResolvedConfig,
    dataset: Dataset,
    key: Key,
    ledger: Ledger,
    model: nn.Module,
    device: torch.device,
    ranks: Ranks = ALONE,
    own: OwnTrial | None = None,
    watched: Callable[[PerExamplePath], PerExamplePath] | None = None,
) -> GradientSource:
    """What the training loop asks for gradients; with several ``ranks`` each makes some of a step's passes.

    ``own`` is what the trial of an owner's own network found out; ``watched`` puts its path under watch.
    """
    recipe = find_recipe(config.recipe)
    augmentation = recipe.augmentation(config)
    records = DeviceRecords(dataset.train, dataset.levels, device)
    if not recipe.counted(config.variant):
        expected = config.batch_size / _cut_for(ranks, device)
        rows = physical_batch_size(config.performance, expected, copies=augmentation.copies)
        batching = Batching(records, augmentation, ranks.smallest(rows), key)
        loss, declared = recipe.record_loss(config), {"sample_rate": config.sample_rate, "divisor": config.batch_size}
        plain = (
            PlainGradients(model, loss, batching, **declared)
            if ranks is ALONE
            else SharedPlainGradients(model, loss, batching, **declared, ranks=ranks)
        )
        variant = recipe.variant(config.variant) if recipe.private else None
        return plain if variant is None or variant.source is None else variant.source(config, plain, model, key)
    shapes = {name: value.detach() for name, value in trainable_parameters(model).items()}
    parameters = sum(value.numel() for value in shapes.values())
    execution = PrivateExecution(plan_of(config), key, ledger, records=len(records), parameters=parameters, device=device)
    mode = pass_mode(model, device)
    if own is None:
        path = per_example_path(config, model, dataset)
        rows = ranks.smallest(pass_records(config, dataset, model, path, device, ranks))
    else:
        path, rows = own_path(config, own.kind, model), own.records
    path = path if watched is None else watched(path)
    batching = Batching(records, augmentation, rows, key, layers_draw(model))
    source = (
        PrivateGradients(execution, path, batching, shapes, mode)
        if ranks is ALONE
        else SharedPrivateGradients(execution, path, batching, shapes, mode, ranks=ranks)
    )
    movement = moved_copies_in(path)
    return source if movement is None else WarmedUp(source, movement, key)


def pass_records(
    config: ResolvedConfig,
    dataset: Dataset,
    model: nn.Module,
    path: PerExamplePath,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> int:
    """How many records a pass of this rank's would hold; the ranks then agree on the smallest."""
    copies = find_recipe(config.recipe).augmentation(config).copies
    return physical_batch_size(
        config.performance,
        config.batch_size / _cut_for(ranks, device),
        copies=copies,
        limit=_limit(ClippedPass(path, torch.ones_like), dataset.shape, copies, device),
        device=device.type,
        parameters=sum(value.numel() for value in trainable_parameters(model).values()),
        workers=max(_FEWEST_WORKERS, pass_mode(model, device).workers),
    )


def _cut_for(ranks: Ranks, device: torch.device) -> int:
    """Among how many ranks the rows of one pass on a GPU are divided: there one pass would hold a whole draw.

    On a CPU a draw is several passes anyway, and they stay the same for any number of ranks: so do a recipe's noisy copies,
    which belong to passes, and the model.
    """
    return ranks.world if device.type == "cuda" else 1


def _limit(work: ClippedPass, shape: tuple[int, ...], copies: int, device: torch.device) -> int:
    """Rows, that is copies of records, that a pass may hold."""
    if device.type == "cpu":
        return _MOST_ROWS
    return min(_MOST_ROWS, copies * records_that_fit(work, shape, copies, device))


def run_plugins(config: ResolvedConfig, model: nn.Module) -> dict[str, Any]:
    """The entry of ``run.json`` for what the training uses from outside of this package; empty where it uses nothing."""
    used = [*recipe_plugins(config.recipe, config.variant), *rule_plugins(model)]
    return {"plugins": [plugin.as_dict() for plugin in used]} if used else {}
