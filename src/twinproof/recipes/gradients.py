"""A run's source of gradients and its optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.resolve import plan_of
from twinproof.training.passes import Batching, DeviceRecords, layers_draw, pass_mode, physical_batch_size, records_that_fit
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath, SinglePath, SpacedPath, VmapPath, trainable_parameters
from twinproof.training.sources import ClippedPass, GradientSource, PlainGradients, PrivateGradients

# Larger passes gain nothing on any device, and their scratch memory is better left to others.
_MOST_ROWS = 32_768
# Passes are cut for this many cores at least, so that one core and two give the same bits.
_FEWEST_WORKERS = 2


@dataclass(frozen=True)
class PathKind:
    """Which path, on which layout of images, with how many rows for each record."""

    name: Literal["fast", "vmap", "single"]
    channels_last: bool = False
    every: int = 1

    def __str__(self) -> str:
        return f"{self.name} path" + (f" with {self.every} rows for each record" if self.every > 1 else "")


def per_example_path(config: ResolvedConfig, model: nn.Module, dataset: Dataset) -> PerExamplePath:
    """How the gradients of single records are computed: their copies moved first, where the recipe says so."""
    recipe = config.spec
    view = None if recipe.view is None else recipe.view(model)
    path = choose_path(
        model if view is None else view,
        recipe.record_loss(config),
        dataset.shape,
        len(dataset.classes),
        copies=recipe.augmentation(config).copies,
        path=config.performance.path,
        columns=0 if view is None else view.columns,
    )
    return _moving(config, model, path)


def path_of_kind(config: ResolvedConfig, kind: PathKind, model: nn.Module) -> PerExamplePath:
    """The path of this kind on ``model``."""
    recipe = config.spec
    seen = model if recipe.view is None else recipe.view(model)
    loss = recipe.record_loss(config)
    path: PerExamplePath
    if kind.name == "fast":
        path = FastPath(seen, loss, channels_last=kind.channels_last)
    else:
        path = VmapPath(seen, loss) if kind.name == "vmap" else SinglePath(seen, loss)
    path = _moving(config, model, path)
    return path if kind.every == 1 else SpacedPath(path, kind.every)


def _moving(config: ResolvedConfig, model: nn.Module, path: PerExamplePath) -> PerExamplePath:
    ascent = config.spec.ascent
    return path if ascent is None else ascent(config).on(model, path, originals=config.originals)


@dataclass(frozen=True, eq=False)
class ChosenPath:
    """The path of a network that was tried, and the records of its passes."""

    path: PerExamplePath
    records: int


def gradient_source(
    config: ResolvedConfig,
    dataset: Dataset,
    key: Key,
    ledger: Ledger,
    model: nn.Module,
    *,
    ranks: Ranks = ALONE,
    chosen: ChosenPath | None = None,
) -> GradientSource:
    """What the training loop asks for gradients; with several ``ranks`` each makes some of a step's passes."""
    recipe, device = config.spec, next(model.parameters()).device
    augmentation = recipe.augmentation(config)
    records = DeviceRecords(dataset.train, dataset.levels, device)
    if not recipe.counted(config.variant):
        expected = config.batch_size / _cut_for(ranks, device)
        rows = physical_batch_size(config.performance, expected, copies=augmentation.copies)
        batching = Batching(records, augmentation, ranks.smallest(rows), key)
        declared = {"sample_rate": config.sample_rate, "divisor": config.batch_size}
        plain = PlainGradients(model, recipe.record_loss(config), batching, **declared, ranks=ranks)
        variant = recipe.variant(config.variant) if recipe.private else None
        return plain if variant is None or variant.source is None else variant.source(config, plain, model, key)
    shapes = {name: value.detach() for name, value in trainable_parameters(model).items()}
    parameters = sum(value.numel() for value in shapes.values())
    execution = PrivateExecution(plan_of(config), key, ledger, records=len(records), parameters=parameters, device=device)
    if chosen is None:
        path = per_example_path(config, model, dataset)
        chosen = ChosenPath(path, ranks.smallest(pass_records(config, dataset, model, path, device, ranks)))
    batching = Batching(records, augmentation, chosen.records, key, layers_draw(model))
    return PrivateGradients(execution, chosen.path, batching, shapes, pass_mode(model, device), ranks=ranks)


def pass_records(
    config: ResolvedConfig,
    dataset: Dataset,
    model: nn.Module,
    path: PerExamplePath,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> int:
    """How many records a pass of this rank's would hold; the ranks then agree on the smallest."""
    copies, rows = config.spec.augmentation(config).copies, _MOST_ROWS
    if device.type != "cpu":
        rows = min(rows, copies * records_that_fit(ClippedPass(path, torch.ones_like), dataset.shape, copies, device))
    return physical_batch_size(
        config.performance,
        config.batch_size / _cut_for(ranks, device),
        copies=copies,
        limit=rows,
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


def optimizer_of(config: ResolvedConfig, model: nn.Module) -> torch.optim.Optimizer:
    """What moves the weights of ``model``: SGD, unless the variant has another; its state is the checkpoint's."""
    variant = config.spec.variant(config.variant)
    if variant is not None and variant.optimizer is not None:
        return variant.optimizer(model, config.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
