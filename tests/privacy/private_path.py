"""The real training path (draw, copies, per-example gradients, clip, sum, release) in a form that tests can look into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.data.record import Split
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Draw, Plan, PrivateExecution
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import ONE_BY_ONE, Augmentation, Batching, DeviceRecords, PassMode, Repeats
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss
from twinproof.training.sources import PrivateGradients

LEVELS = 255
CLASSES = 3
Records = tuple[NDArray[np.uint8], NDArray[np.int64]]


def make_plan(**changes: Any) -> Plan:
    """A plan with every field set; ``changes`` names those that a test is about."""
    fields: dict[str, Any] = {
        "sample_rate": 1.0,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "divisor": 1.0,
        "steps": 1,
        "delta": 1e-5,
    }
    return Plan(**(fields | changes))


def new_ledger(folder: Path, name: str = "ledger.jsonl") -> Ledger:
    return Ledger.create(folder / name, config_sha256="0" * 64, delta=1e-5)


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def flat(tensors: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """All parameters behind one another, as the noise meets them."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors.values()]).numpy()


class WatchedExecution(PrivateExecution):
    """Keeps what was handed to ``release``: the clipped sums before rounding and noise."""

    handed: dict[str, Tensor] | None = None

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.handed = {name: value.clone() for name, value in sums.items()}
        return super().release(draw, sums)


@dataclass(frozen=True)
class TrainingPath:
    """A network with everything a step needs; ``source`` puts the real parts together for some records."""

    model: nn.Module
    plan: Plan
    ledger: Ledger
    shape: tuple[int, ...]
    augmentation: Augmentation = field(default_factory=Repeats)
    physical_batch: int = 4
    key: Key = field(default_factory=lambda: Key.from_seed(7))
    loss: RecordLoss = mean_cross_entropy
    execution: type[PrivateExecution] = WatchedExecution
    wrap: Callable[[PerExamplePath], PerExamplePath] = lambda path: path
    mode: PassMode = ONE_BY_ONE

    def chosen(self) -> PerExamplePath:
        """The path that the product would choose for this network."""
        return choose_path(self.model, self.loss, self.shape, CLASSES, copies=self.augmentation.copies)

    def source(self, data: Records, path: PerExamplePath | None = None) -> tuple[PrivateGradients, PrivateExecution]:
        split = Split(*data)
        held = DeviceRecords(split, LEVELS, torch.device("cpu"))
        batching = Batching(held, self.augmentation, self.physical_batch, self.key)
        execution = self.execution(self.plan, self.key, self.ledger, records=len(split), parameters=parameter_count(self.model))
        shapes = {name: value.detach() for name, value in self.model.named_parameters()}
        return PrivateGradients(execution, self.wrap(path or self.chosen()), batching, shapes, self.mode), execution
