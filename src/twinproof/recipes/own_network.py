"""A data set or network that the caller brings, and how such a network is trained privately."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.guarantees import OWN_NETWORK_ASSUMPTIONS
from twinproof.recipes.registry import find_recipe
from twinproof.runs.layout import read_run_json, write_run_json
from twinproof.runs.run import own_network_name
from twinproof.training.copies import MovedCopies
from twinproof.training.own_network.trial import Probe, Remembered, RowTrial, make_probe, try_forward, try_state
from twinproof.training.own_network.watch import Workshop
from twinproof.training.passes import DeviceRecords, pass_mode
from twinproof.training.per_example.choose import choose_path, shifted_parameters
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import NotMappable, PerExamplePath, SinglePath, SpacedPath, VmapPath

_FIELD = "own_network"


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

    def network_copy(self, name: str) -> nn.Module:
        """A copy of the caller's network, which stays as it is; refused if it is not the one that ``name`` says."""
        if self.network is None or own_network_name(self.network) != name:
            raise ConfigError(
                "the run trains a network of your own",
                where="network",
                got="no network" if self.network is None else own_network_name(self.network),
                wanted=name,
                fix="give the module: train(..., network=...)",
            )
        return copy.deepcopy(self.network)


def describe_own_network(codes: Iterable[str]) -> dict[str, Any]:
    """The entry of ``run.json`` for a run that trains an owner's own network privately."""
    return {_FIELD: {"assumptions": sorted(set(codes))}}


def own_network_assumptions(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The codes of what could not be shown about the run's own network; None for a built-in network."""
    entry = record.get(_FIELD)
    if entry is None:
        return None
    codes = entry.get("assumptions") if isinstance(entry, Mapping) else None
    if not isinstance(codes, list) or any(code not in OWN_NETWORK_ASSUMPTIONS for code in codes):
        raise RunError(
            "what was found out about the network cannot be read",
            where=f"run.json, {_FIELD}",
            got=entry,
            wanted=f"a list of assumptions, each one of: {', '.join(OWN_NETWORK_ASSUMPTIONS)}",
            fix="restore run.json, or start a new run",
        )
    return tuple(codes)


def note_own_network(root: Path, codes: Iterable[str]) -> None:
    """Adds codes to those in ``run.json``: an assumption stays, whatever a later session can show."""
    record = read_run_json(root)
    entry = describe_own_network([*(own_network_assumptions(record) or ()), *codes])
    if record.get(_FIELD) != entry[_FIELD]:
        write_run_json(root, record | entry)


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
