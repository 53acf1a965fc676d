"""An owner's own network through one session of training: tried first, watched at every step, checked before the release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.gradients import pass_records
from twinproof.recipes.noise_network import initial_network
from twinproof.recipes.own_network import KEPT_STATE, Own, OwnTrial, note_own_network, try_own_network, workshop
from twinproof.training.loop import GradientSource
from twinproof.training.own_network.state import TensorWatch, WatchedSource
from twinproof.training.own_network.watch import WatchedPath
from twinproof.training.passes import is_known
from twinproof.training.per_example.paths import PerExamplePath

_PACKAGE = "twinproof."


def try_network(
    config: ResolvedConfig, own: Own, dataset: Dataset, key: Key, device: torch.device, ranks: Ranks = ALONE
) -> OwnTrial:
    """The trial of the caller's network on ``device``; with several ``ranks`` at the size that this one would choose."""
    fresh = _maker(config, own, dataset, key, device)
    model = fresh()
    return try_own_network(config, dataset, fresh, lambda path: pass_records(config, dataset, model, path, device, ranks))


def _maker(config: ResolvedConfig, own: Own, dataset: Dataset, key: Key, device: torch.device) -> Callable[[], nn.Module]:
    return lambda: initial_network(config, own, dataset, key).to(device).train()


class OwnTraining:
    """The watch over one session: what could not be shown is noted in ``run.json`` when it is seen.

    Guarantees
        A session that comes to its end has seen no tensor of the model change but by the plan's updates, at no step; and at
        steps 1, 2, 4, ... and at the end the gradients of a fresh copy with the same weights were the same.
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
        self._root, self._config, self._key, self._model, self._ranks = root, config, key, model, ranks
        self._fresh = _maker(config, own, dataset, key, device)
        found = tried or try_network(config, own, dataset, key, device, ranks)
        records = ranks.smallest(found.records)
        if records != found.records:
            found = try_own_network(config, dataset, self._fresh, lambda _: records)
        self.trial = found
        self._codes = set(found.codes)
        self._path: WatchedPath | None = None
        self._watch: TensorWatch | None = None
        if ranks.is_first:
            note_own_network(root, found.codes)

    def watched(self, path: PerExamplePath) -> PerExamplePath:
        """The path under watch; layers that are all torch's or ours keep nothing and are not compared with copies."""
        if is_known(self._model):
            return path
        shop = workshop(self._config, self.trial, self._fresh)
        self._path = WatchedPath(path, self._model, shop, self._key, self._note)
        return self._path

    def begin(self, source: GradientSource, first: int) -> GradientSource:
        """The source for the loop, once the model has the weights that step ``first`` begins with."""
        self._watch = TensorWatch(self._model, self._fresh(), _moved_by_package(self._model))
        if self._path is None:
            return WatchedSource(source, self._watch, lambda _: nullcontext())
        self._path.tensors = self._watch
        return WatchedSource(source, self._watch, self._path.around(first, self._config.steps))

    def updated(self) -> None:
        """Told after each update, and what the package does to the weights after it."""
        if self._watch is not None:
            self._watch.updated()

    def check(self) -> None:
        """Ends in an error if something was seen; call it before anything of a step is kept or shown."""
        if self._watch is not None:
            self._watch.check()

    def finish(self) -> None:
        """The last look, after the last step and before the weights are written."""
        if self._path is not None:
            self._path.finish()
        if self._watch is not None:
            self._watch.compare()
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
