"""twinproof's own private step: per-example gradients of all copies by the chosen path, their norms, the clipped sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from speed.graphs import captured
from speed.memory import step_bytes
from speed.peers.peer import Answer, NotRun, Peer, Step, added
from speed.workloads import CLASSES, CLIP, WORKLOADS, Task
from twinproof.privacy.plan import flat_clip_weights
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example import PerExamplePath, VmapPath, choose_path
from twinproof.training.per_example.gradients import SCRATCH


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
