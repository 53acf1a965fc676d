"""A run's source of gradients: its recipe's loss and copies, its plan, and how much of it fits into one pass."""

from __future__ import annotations

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.randomness import Key
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.resolve import plan_of
from twinproof.training.adversarial_copies import AdversarialCopies, WarmedUp
from twinproof.training.batching import Batching
from twinproof.training.device_memory import records_that_fit
from twinproof.training.gradient_source import GradientSource, PlainGradients, PrivateGradients
from twinproof.training.pass_mode import layers_draw, pass_mode
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.path import PerExamplePath, trainable_parameters
from twinproof.training.performance import physical_batch_size
from twinproof.training.records import DeviceRecords
from twinproof.training.step_sums import ClippedPass

# Larger passes gain nothing on any device, and their scratch memory is better left to others.
_MOST_ROWS = 32_768
# Passes are cut for this many cores at least, so that one core and two give the same bits.
_FEWEST_WORKERS = 2


def gradient_source(
    config: ResolvedConfig, dataset: Dataset, key: Key, ledger: Ledger, model: nn.Module, device: torch.device
) -> GradientSource:
    """What the training loop asks for gradients."""
    recipe = find_recipe(config.recipe)
    augmentation = recipe.augmentation(config)
    records = DeviceRecords(dataset.train, dataset.levels, device)
    if not recipe.private:
        rows = physical_batch_size(config.performance, config.batch_size, copies=augmentation.copies)
        batching = Batching(records, augmentation, rows, key)
        loss = recipe.record_loss(config)
        return PlainGradients(model, loss, batching, sample_rate=config.sample_rate, divisor=config.batch_size)
    shapes = {name: value.detach() for name, value in trainable_parameters(model).items()}
    parameters = sum(value.numel() for value in shapes.values())
    execution = PrivateExecution(plan_of(config), key, ledger, records=len(records), parameters=parameters, device=device)
    path, mode = per_example_path(config, model, dataset), pass_mode(model, device)
    rows = physical_batch_size(
        config.performance,
        config.batch_size,
        copies=augmentation.copies,
        limit=_limit(ClippedPass(path, execution.clip_weights), dataset.shape, augmentation.copies, device),
        device=device.type,
        parameters=parameters,
        workers=max(_FEWEST_WORKERS, mode.workers),
    )
    batching = Batching(records, augmentation, rows, key, layers_draw(model))
    source = PrivateGradients(execution, path, batching, shapes, mode)
    return WarmedUp(source, path) if isinstance(path, AdversarialCopies) else source


def per_example_path(config: ResolvedConfig, model: nn.Module, dataset: Dataset) -> PerExamplePath:
    """How the gradients of single records are computed: their copies moved first, where the recipe says so."""
    recipe = find_recipe(config.recipe)
    path = choose_path(
        model,
        recipe.record_loss(config),
        dataset.shape,
        len(dataset.classes),
        copies=recipe.augmentation(config).copies,
        path=config.performance.path,
    )
    if recipe.ascent is None:
        return path
    return AdversarialCopies(model, path, recipe.ascent(config), originals=config.originals)


def _limit(work: ClippedPass, shape: tuple[int, ...], copies: int, device: torch.device) -> int:
    """Rows, that is copies of records, that a pass may hold."""
    if device.type == "cpu":
        return _MOST_ROWS
    return min(_MOST_ROWS, copies * records_that_fit(work, shape, copies, device))
