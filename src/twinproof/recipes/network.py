"""What a run trains: its network, the rule that holds the layer before its noise, its source of gradients and its optimiser."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.networks import Prior, build_run_network, start_from_prior
from twinproof.layers.noise_constraint import Constraint, TwoNoisesConstraint
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.recipe import Holds
from twinproof.recipes.resolve import plan_of
from twinproof.runs.run import is_own_network, own_network_name
from twinproof.training.passes import Batching, DeviceRecords, layers_draw, pass_mode, physical_batch_size, records_that_fit
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath, SinglePath, SpacedPath, VmapPath, trainable_parameters
from twinproof.training.sources import ClippedPass, GradientSource, PlainGradients, PrivateGradients


@dataclass(frozen=True)
class Own:
    """A data set and a network from the caller, or None for what the settings name."""

    dataset: Dataset | None = None
    network: nn.Module | None = None

    def named(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with the names under which these are written down; a second source for the same thing is refused."""
        named = dict(settings)
        for key, mine in (("data", self.dataset), ("model", self.network)):
            if mine is not None and settings.get(key) is not None:
                raise ConfigError(
                    f"{key} is given twice", where=key, got=f"{settings[key]!r}, and an object", wanted="one of the two"
                )
        if self.dataset is not None:
            named["data"] = {"source": self.dataset.name}
        if self.network is not None:
            named["model"] = own_network_name(self.network)
        return named

    def network_copy(self, name: str) -> nn.Module | None:
        """A copy of the caller's network, if ``name`` says that the run trains one; it must be that one."""
        if not is_own_network(name):
            return None
        if self.network is None or own_network_name(self.network) != name:
            raise ConfigError(
                "the run trains a network of your own",
                where="network",
                got="no network" if self.network is None else own_network_name(self.network),
                wanted=name,
                fix="give the module: train(..., network=...)",
            )
        return copy.deepcopy(self.network)


def run_network(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
    """The network that the settings describe, with weights to start from, or a copy of the caller's own."""
    settings, variant = config.model_dump(mode="json"), config.spec.variant(config.variant)
    network = build_run_network(settings, dataset.shape, len(dataset.classes), own.network_copy(config.model))
    start = config.spec.start
    if start.initialise is not None and own.network is None:
        start.initialise(network)
    if config.prior is Prior.FIGURES:
        start_from_prior(network, start.prior_level(config), config.model)
    if variant.prepare is not None:
        variant.prepare(network, config)
    return network


def initial_network(config: ResolvedConfig, own: Own, dataset: Dataset, key: Key) -> nn.Module:
    """The network before the first step: a function of the settings and the key, not of torch's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.seed("initial weights"))
        return run_network(config, own, dataset)


def constraint_of(config: ResolvedConfig, shape: tuple[int, ...]) -> Holds | None:
    """What is done to the network before the first step and after each one.

    It is a function of the weights alone: post-processing of the private steps, which costs no privacy.
    """
    variant, noise = config.spec.variant(config.variant), config.noise_layer
    if variant.constraint is not None:
        return variant.constraint()
    if noise is None:
        return None
    if noise.place != BOTH_PLACES:
        return Constraint(noise.weights, noise.norm, noise.law, config.sigma, shape)
    hidden = Constraint(noise.weights, noise.norm, noise.law, config.sigma * noise.hidden_share, shape)
    return TwoNoisesConstraint(config.sigma, hidden)


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
        steps = recipe.variant(config.variant).steps if recipe.private else None
        return plain if steps is None else steps.source(config, plain, model, key)
    shapes = {name: value.detach() for name, value in trainable_parameters(model).items()}
    parameters = sum(value.numel() for value in shapes.values())
    execution = PrivateExecution(plan_of(config), key, ledger, records=len(records), parameters=parameters, device=device)
    if chosen is None:
        path = per_example_path(config, model, dataset)
        chosen = ChosenPath(path, ranks.smallest(pass_records(config, dataset, model, path, device, ranks)))
    batching = Batching(records, augmentation, chosen.records, key, layers_draw(model))
    return PrivateGradients(execution, chosen.path, batching, shapes, pass_mode(model, device), ranks=ranks)


def pass_records(
    config: ResolvedConfig, dataset: Dataset, model: nn.Module, path: PerExamplePath, device: torch.device, ranks: Ranks = ALONE
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
    if (other := config.spec.variant(config.variant).optimizer) is not None:
        return other(model, config.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
