"""twinproof's step as a run takes it: Poisson sampling, copies, clipped sum, noise, ledger and the weight update.

The others are measured without sampling, noise and update. Here they are included: the sample rate is so close to 1 that
every record is drawn, and the noise has deviation 0, so that the answer can be compared; both cost what they always do.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speed.peers.peer import Answer, Peer, Step
from speed.workloads import CLASSES, CLIP, Task
from twinproof.data.record import Split
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Plan, PrivateExecution
from twinproof.training.loop import Update, mean_cross_entropy
from twinproof.training.passes import Augmentation, Batching, DeviceRecords, layers_draw, pass_mode
from twinproof.training.per_example import choose_path
from twinproof.training.sources import PrivateGradients

_STEPS = 10**6


class _GivenCopies(Augmentation):
    """The task's own copies, which lie in the records one after the other: every method must see the same ones."""

    def __init__(self, copies: int) -> None:
        self._copies = copies

    @property
    def copies(self) -> int:
        return self._copies

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs


class _TaskRecords(DeviceRecords):
    """A task's records, as floats that are there already."""

    def __init__(self, task: Task) -> None:
        super().__init__(Split(np.zeros((0, 1), np.uint8), np.zeros(0, np.int64)), 255, task.device)
        self._floats = task.inputs
        self._labels = task.labels

    def inputs(self, rows: Tensor | slice) -> Tensor:
        return self._floats[rows]


def whole(task: Task) -> Step:
    """The step of a run, with a learning rate of 0 so that every call has the same answer."""
    model = task.model()
    device = task.device
    records = _TaskRecords(task)
    folder = tempfile.TemporaryDirectory()
    plan = Plan(
        sample_rate=math.nextafter(1.0, 0.0), noise_multiplier=0.0, clip_norm=CLIP, divisor=1.0, steps=_STEPS, delta=1e-5
    )
    ledger = Ledger.create(Path(folder.name) / "ledger.jsonl", config_sha256="0" * 64, delta=plan.delta)
    shapes = {name: value.detach() for name, value in model.named_parameters()}
    parameters = sum(value.numel() for value in shapes.values())
    execution = PrivateExecution(plan, Key.from_seed(0), ledger, records=task.records, parameters=parameters, device=device)
    path = choose_path(model, mean_cross_entropy, task.workload.shape, CLASSES, copies=task.copies)
    rows = min(task.cut().records_per_pass, task.records)
    batching = Batching(records, _GivenCopies(task.copies), rows, Key.from_seed(1), layers_draw(model))
    source = PrivateGradients(execution, path, batching, shapes, pass_mode(model, device))
    update = Update(model, torch.optim.SGD(model.parameters(), lr=0.0))
    steps = iter(range(_STEPS))

    def run(_held: object = folder) -> Answer:  # the ledger's folder lives as long as the step
        gradients = source.gradient(next(steps))
        update(gradients)
        return gradients

    return Step(run)


WHOLE_STEP = (Peer("twinproof, whole step of a run", "twinproof", whole),)
