"""How an owner's own network is trained privately: the fastest path on which it was shown to treat every record alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import ModelError
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.registry import find_recipe
from twinproof.training.moved_copies import MovedCopies
from twinproof.training.own_network.trial import Probe, Remembered, RowTrial, make_probe, try_forward, try_state
from twinproof.training.own_network.watch import Workshop
from twinproof.training.pass_mode import pass_mode
from twinproof.training.per_example.alone import SinglePath, SpacedPath
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.failures import NotMappable
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.path import PerExamplePath
from twinproof.training.per_example.trial import shifted_parameters
from twinproof.training.per_example.vmap import VmapPath
from twinproof.training.records import DeviceRecords

GPU_ROUNDING, KEPT_STATE = "gpu-rounding", "kept-state"
_CPU = torch.device("cpu")
_SPACES = (4, 16)  # sixteen numbers of four bytes are as wide as any register of a CPU
_MOST_ON_CPU = 256  # records of a GPU's pass that are tried on the CPU too
_PUBLIC = 64  # public records that stand beside random ones in the trial


@dataclass(frozen=True)
class PathKind:
    """Which path, on which layout of images, with how many rows for each record."""

    name: Literal["fast", "vmap", "single"]
    channels_last: bool = False
    every: int = 1

    def __str__(self) -> str:
        return f"{self.name} path" + (f" with {self.every} rows for each record" if self.every > 1 else "")


@dataclass(frozen=True, eq=False)
class OwnTrial:
    """What was found out about a network: the path to take, for passes of ``records``, and codes of what was not shown."""

    kind: PathKind
    records: int
    codes: tuple[str, ...]
    probe: Probe
    remembered: Remembered


def per_example_path(config: ResolvedConfig, model: nn.Module, dataset: Dataset) -> PerExamplePath:
    """How the gradients of single records are computed: their copies moved first, where the recipe says so."""
    recipe = find_recipe(config.recipe)
    view = None if recipe.view is None else recipe.view(model)
    path = choose_path(
        model if view is None else view,
        recipe.record_loss(config),
        dataset.shape,
        len(dataset.classes) + (0 if view is None else view.columns),
        copies=recipe.augmentation(config).copies,
        path=config.performance.path,
    )
    return _moving(config, model, path)


def own_path(config: ResolvedConfig, kind: PathKind, model: nn.Module) -> PerExamplePath:
    """The path of this kind on ``model``."""
    recipe = find_recipe(config.recipe)
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
    ascent = find_recipe(config.recipe).ascent
    return path if ascent is None else ascent(config).on(model, path, originals=config.originals)


def workshop(config: ResolvedConfig, found: OwnTrial, fresh: Callable[[], nn.Module]) -> Workshop:
    """What a watch over the training compares with."""
    build = partial(own_path, config, found.kind)
    return Workshop(fresh, build, found.probe, found.remembered, exact=GPU_ROUNDING not in found.codes)


def try_own_network(
    config: ResolvedConfig, dataset: Dataset, fresh: Callable[[], nn.Module], sized: Callable[[PerExamplePath], int]
) -> OwnTrial:
    """Tries a network on copies of it; ``fresh`` makes one, ``sized`` says how many records a pass of a path holds.

    Guarantees
        Whatever is returned was run at that pass size: one record gave the same bits in every row, beside random, public, equal
        and empty rows, and in a fresh copy; random numbers belonged to single rows. ModelError names what does not hold,
        and what writes to the model's tensors. ``codes`` names what could not be shown.
    """
    try:
        first = _kind_of(per_example_path(config, fresh(), dataset))
        kinds = _candidates(first, config.performance.path)
    except NotMappable:
        if config.performance.path != "auto":
            raise
        kinds = [PathKind("single")]
    reasons: list[str] = []
    tried = 0
    for kind in kinds:
        used = fresh()
        records = sized(own_path(config, kind, used))
        probe = _probe(config, used, dataset, records)
        with _threads(used):
            if records != tried:
                try_forward(fresh, probe)
                tried = records
            if (codes := _shown(config, kind, used, probe, fresh, reasons)) is None:
                continue
            remembered, places = _state(config, kind, used, probe, fresh, exact=not codes)
        return OwnTrial(kind, records, codes + ((KEPT_STATE,) if places else ()), probe, remembered)
    raise ModelError(
        "it could not be shown that a record's gradient depends on that record alone",
        where="trial on random and public records, at the size of the run's passes",
        got="; ".join(dict.fromkeys(reasons)),
        wanted="the same bits in every row, beside whatever records",
        fix="treat each row of the batch alone; or let the path be chosen (performance.path=auto)",
    )


def _shown(
    config: ResolvedConfig, kind: PathKind, used: nn.Module, probe: Probe, fresh: Callable[[], nn.Module], reasons: list[str]
) -> tuple[str, ...] | None:
    """The codes with which this kind of path may be used; None, and a reason more, if it may not."""
    with shifted_parameters(used):
        reason = RowTrial(own_path(config, kind, used), probe).reason()
    if not reason:
        return ()
    reasons.append(f"{kind}: {reason}")
    if probe.labels.device == _CPU:
        return None
    for every in (1, *_SPACES):
        copy = fresh().to(_CPU)
        with shifted_parameters(copy):
            path = own_path(config, replace(kind, every=every), copy)
            if not RowTrial(path, probe.to(_CPU, _MOST_ON_CPU)).reason():
                return (GPU_ROUNDING,)
    return None


def _state(
    config: ResolvedConfig, kind: PathKind, used: nn.Module, probe: Probe, fresh: Callable[[], nn.Module], *, exact: bool
) -> tuple[Remembered, list[str]]:
    """Where the network keeps values; on the CPU where the bits of its own device say nothing."""
    if not exact:
        probe, used = probe.to(_CPU, _MOST_ON_CPU), used.to(_CPU)
    with shifted_parameters(used):
        return try_state(lambda: fresh().to(probe.labels.device), partial(own_path, config, kind), probe, used)


def _probe(config: ResolvedConfig, model: nn.Module, dataset: Dataset, records: int) -> Probe:
    public = DeviceRecords(dataset.test, dataset.levels, _CPU).inputs(slice(_PUBLIC))
    copies = find_recipe(config.recipe).augmentation(config).copies
    return make_probe(model, public, len(dataset.classes), records=records, copies=copies)


def _kind_of(path: PerExamplePath) -> PathKind:
    while isinstance(path, MovedCopies):
        path = path.inner
    return PathKind("fast", path.channels_last) if isinstance(path, FastPath) else PathKind("vmap")


def _candidates(first: PathKind, asked: str) -> list[PathKind]:
    """The fastest first; only the one that was asked for, where one was."""
    if asked != "auto":
        return [first]
    vmap: Sequence[PathKind] = () if first.name == "vmap" else (PathKind("vmap"),)
    spaced = [replace(first, every=every) for every in _SPACES]
    return [first, *vmap, *spaced, PathKind("single")]


@contextmanager
def _threads(model: nn.Module) -> Iterator[None]:
    """As many threads inside each operation as passes will have: it decides in which order numbers are added."""
    before = torch.get_num_threads()
    device = next(model.parameters()).device
    if pass_mode(model, device).workers > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
