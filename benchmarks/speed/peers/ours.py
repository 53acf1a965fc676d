"""twinproof's own private step: per-example gradients of all copies by the chosen path, their norms, the clipped sum.

The whole step of a run has Poisson sampling, copies, noise, ledger and the weight update as well, which the others are
measured without: the sample rate is so close to 1 that every record is drawn, and the noise has deviation 0, so that the answer
can be compared; both cost what they always do.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speed.peers.peer import Answer, NotRun, Peer, Step, added, captured
from speed.timing import step_bytes
from speed.workloads import CLASSES, CLIP, WORKLOADS, Task
from twinproof.data.record import Split
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Plan, PrivateExecution, flat_clip_weights
from twinproof.training.loop import Update, mean_cross_entropy
from twinproof.training.passes import Augmentation, Batching, DeviceRecords, layers_draw, pass_mode
from twinproof.training.per_example import PerExamplePath, VmapPath, choose_path
from twinproof.training.per_example.gradients import SCRATCH
from twinproof.training.sources import PrivateGradients


@cache
def _chosen_path(workload: str, copies: int, device: torch.device) -> PerExamplePath:
    """The path that a run would use; chosen once, since the trial behind the choice takes longer than a step."""
    found = WORKLOADS[workload]
    return choose_path(found.model(device), mean_cross_entropy, found.shape, CLASSES, copies=copies)


def eager(task: Task) -> Step:
    """The step as a run does it, without the noise; on a CPU in passes of the size that a run would take."""
    path = _chosen_path(task.workload.name, task.copies, task.device)
    parts = list(_cut(task).passes())

    def clipped(inputs: Tensor, labels: Tensor) -> Answer:
        gradients = path.gradients(inputs, labels)
        weights = flat_clip_weights(gradients.squared_norms(), CLIP)
        return gradients.weighted_sums(weights)

    def run() -> Answer:
        return added(clipped(*part) for part in parts)

    note = f"by vmap, not the fast path: {path.reason}" if isinstance(path, VmapPath) else ""
    return Step(run, note=note, reserved_bytes=_whole_memory(run, task.device))


def _cut(task: Task) -> Task:
    return task.cut() if task.device.type == "cpu" else task


def _whole_memory(run: Callable[[], Answer], device: torch.device) -> int | None:
    """Peak memory of a step on a CPU, with what the path then keeps for the next one; None leaves the measuring to others."""
    if device.type != "cpu":
        return None
    run()
    SCRATCH.release()
    return step_bytes(run, device)


def graph(task: Task) -> Step:
    """The same, captured in a CUDA graph."""
    if task.device.type != "cuda":
        raise NotRun("CUDA graphs need a GPU")
    return captured(eager(task).run, task.device)


OURS = (Peer("twinproof", "twinproof", eager), Peer("twinproof, CUDA graph", "twinproof", graph))


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
        self.labels = task.labels

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
