"""An owner's own network in private training: tried first, watched at every step, checked before the release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from twinproof.compute.devices import one_thread_inside
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.cross_example import is_known
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.finish import note_own_network
from twinproof.recipes.network import ChosenPath, Own, PathKind, initial_network, pass_records, path_of_kind, per_example_path
from twinproof.training.own_network.state import TensorWatch, WatchedSource
from twinproof.training.own_network.trial import Probe, Remembered, RowTrial, make_probe, try_forward, try_state
from twinproof.training.own_network.watch import WatchedPath, Workshop
from twinproof.training.passes import DeviceRecords, pass_mode
from twinproof.training.per_example.choose import shifted_parameters
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import NotMappable, OuterPath, PerExamplePath
from twinproof.training.sources import GradientSource

GPU_ROUNDING, KEPT_STATE = "gpu-rounding", "kept-state"
_CPU = torch.device("cpu")
_SPACES = (4, 16)  # sixteen numbers of four bytes are as wide as any register of a CPU
_MOST_ON_CPU = 256  # records of a GPU's pass that are tried on the CPU too
_PUBLIC = 64  # public records that stand beside random ones in the trial
_PACKAGE = "twinproof."


@dataclass(frozen=True, eq=False)
class OwnTrial:
    """What was found out about a network: the path to take, for passes of ``records``, and codes of what was not shown."""

    kind: PathKind
    records: int
    codes: tuple[str, ...]
    probe: Probe
    remembered: Remembered


def try_network(
    config: ResolvedConfig, own: Own, dataset: Dataset, key: Key, device: torch.device, ranks: Ranks = ALONE
) -> OwnTrial:
    """The trial of the caller's network on ``device``; with several ``ranks`` at the size that this one would choose."""
    fresh = _maker(config, own, dataset, key, device)
    model = fresh()
    return try_own_network(config, dataset, fresh, lambda path: pass_records(config, dataset, model, path, device, ranks))


def _maker(config: ResolvedConfig, own: Own, dataset: Dataset, key: Key, device: torch.device) -> Callable[[], nn.Module]:
    return lambda: initial_network(config, own, dataset, key).to(device).train()


def try_own_network(
    config: ResolvedConfig, dataset: Dataset, fresh: Callable[[], nn.Module], sized: Callable[[PerExamplePath], int]
) -> OwnTrial:
    """Tries a network on copies of it; ``fresh`` makes one, ``sized`` says how many records a pass of a path holds.

    The path that is returned was run at that pass size: one record gave the same bits in every row, beside random, public,
    equal and empty rows, and in a fresh copy; random numbers belonged to single rows. ModelError names what does not hold, and
    what writes to the model's tensors. ``codes`` names what could not be shown.
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
        records = sized(path_of_kind(config, kind, used))
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
        wanted="the same bits in every row, beside any records",
        fix="treat each row of the batch alone; or let the path be chosen (performance.path=auto)",
    )


def _shown(
    config: ResolvedConfig, kind: PathKind, used: nn.Module, probe: Probe, fresh: Callable[[], nn.Module], reasons: list[str]
) -> tuple[str, ...] | None:
    """The codes with which this kind of path may be used; None, and a reason more, if it may not."""
    with shifted_parameters(used):
        reason = RowTrial(path_of_kind(config, kind, used), probe).reason()
    if not reason:
        return ()
    reasons.append(f"{kind}: {reason}")
    if probe.labels.device == _CPU:
        return None
    for every in (1, *_SPACES):
        copy = fresh().to(_CPU)
        with shifted_parameters(copy):
            path = path_of_kind(config, replace(kind, every=every), copy)
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
        return try_state(lambda: fresh().to(probe.labels.device), partial(path_of_kind, config, kind), probe, used)


def _probe(config: ResolvedConfig, model: nn.Module, dataset: Dataset, records: int) -> Probe:
    public = DeviceRecords(dataset.test, dataset.levels, _CPU).inputs(slice(_PUBLIC))
    copies = config.spec.augmentation(config).copies
    return make_probe(model, public, len(dataset.classes), records=records, copies=copies)


def _kind_of(path: PerExamplePath) -> PathKind:
    while isinstance(path, OuterPath):
        path = path.inner
    return PathKind("fast", path.channels_last) if isinstance(path, FastPath) else PathKind("vmap")


def _candidates(first: PathKind, asked: str) -> list[PathKind]:
    """The fastest first; only the one that was asked for, where one was."""
    if asked != "auto":
        return [first]
    vmap: Sequence[PathKind] = () if first.name == "vmap" else (PathKind("vmap"),)
    spaced = [replace(first, every=every) for every in _SPACES]
    return [first, *vmap, *spaced, PathKind("single")]


def _threads(model: nn.Module) -> AbstractContextManager[None]:
    """As many threads inside each operation as passes will have: it decides in which order numbers are added."""
    several = pass_mode(model, next(model.parameters()).device).workers > 1
    return one_thread_inside() if several else nullcontext()


class OwnTraining:
    """The watch over one session: what could not be shown is noted in ``run.json`` when it is seen.

    A session that ends well has seen no tensor of the model change but by the plan's updates, at no step; and at steps 1, 2,
    4, ... and at the end the gradients of a fresh copy with the same weights were the same.
    """

    def __init__(
        self,
        root: Path,
        config: ResolvedConfig,
        own: Own,
        dataset: Dataset,
        key: Key,
        model: nn.Module,
        ranks: Ranks,
        tried: OwnTrial | None = None,
    ) -> None:
        device = next(model.parameters()).device
        self._root, self._config, self._model, self._ranks = root, config, model, ranks
        self._fresh = _maker(config, own, dataset, key, device)
        found = tried or try_network(config, own, dataset, key, device, ranks)
        records = ranks.smallest(found.records)
        if records != found.records:
            found = try_own_network(config, dataset, self._fresh, lambda _: records)
        self._codes = set(found.codes)
        path = path_of_kind(config, found.kind, model)
        self._watched: WatchedPath | None = None
        if not is_known(model):  # layers of torch or of this package keep nothing and are not compared with copies
            build = partial(path_of_kind, config, found.kind)
            shop = Workshop(self._fresh, build, found.probe, found.remembered, exact=GPU_ROUNDING not in found.codes)
            path = self._watched = WatchedPath(path, model, shop, key, self._note)
        self.chosen = ChosenPath(path, found.records)
        self._tensors: TensorWatch | None = None
        if ranks.is_first:
            note_own_network(root, found.codes)

    def begin(self, source: GradientSource, first: int) -> GradientSource:
        """The source for the loop, once the model has the weights that step ``first`` begins with."""
        self._tensors = TensorWatch(self._model, self._fresh(), _moved_by_package(self._model))
        if self._watched is not None:
            self._watched.start(self._tensors, first, self._config.steps)
        return WatchedSource(source, self._tensors)

    def updated(self) -> None:
        """To be called after each update, and after what the package does to the weights then."""
        if self._tensors is not None:
            self._tensors.updated()

    def check(self) -> None:
        """Ends in an error if something was seen; to be called before anything of a step is kept or shown."""
        if self._tensors is not None:
            self._tensors.check()

    def finish(self) -> None:
        """The last look, after the last step and before the weights are written."""
        if self._watched is not None:
            self._watched.finish()
        if self._tensors is not None:
            self._tensors.compare()
        self.check()
        self._ranks.agree("what could not be shown about the network", " ".join(sorted(self._codes)))

    def _note(self, places: Sequence[str]) -> None:
        if KEPT_STATE not in self._codes and self._ranks.is_first:
            note_own_network(self._root, [KEPT_STATE])
        self._codes.add(KEPT_STATE)


def _moved_by_package(model: nn.Module) -> list[str]:
    """Buffers of this package's own layers: the deviation of a noise layer follows the weights before it."""
    return [
        f"{path}.{name}" if path else name
        for path, layer in model.named_modules()
        if type(layer).__module__.startswith(_PACKAGE)
        for name, _ in layer.named_buffers(recurse=False)
    ]
