"""A run's source of gradients and its optimiser."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.noise_layer import Variant
from twinproof.recipes.own_network import OwnTrial, own_path, per_example_path
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.resolve import plan_of
from twinproof.training.copies import WarmedUp, moved_copies_in
from twinproof.training.distributed import SharedPlainGradients, SharedPrivateGradients
from twinproof.training.loop import GradientSource, PlainGradients, PrivateGradients
from twinproof.training.passes import Batching, DeviceRecords, layers_draw, pass_mode, physical_batch_size
from twinproof.training.per_example.paths import PerExamplePath, trainable_parameters
from twinproof.training.step_sums import ClippedPass, records_that_fit

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
        as_printed = recipe.printed if recipe.private else None
        return plain if as_printed is None else as_printed.source(config, plain, model, key)
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


def optimizer_of(config: ResolvedConfig, model: nn.Module) -> torch.optim.Optimizer:
    """What moves the weights of ``model``; its state is the checkpoint's."""
    printed = find_recipe(config.recipe).printed if config.variant is Variant.PUBLISHED else None
    if printed is None:
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
    # On a GPU the update is a recording, which cannot count steps on the host.
    recorded = next(model.parameters()).is_cuda
    return torch.optim.Adam(model.parameters(), lr=config.learning_rate, capturable=recorded)
