"""What a method of the comparison is: how to prepare its step for a task, and when it cannot take part; its step as a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from speed.workloads import CLIP, Task

Answer = dict[str, Tensor]
"""The sum over records of the clipped gradients, by parameter name; for plain training, of the gradients."""


class NotRun(Exception):
    """A method cannot do a task; the message is the reason shown in its row."""


@dataclass(frozen=True, eq=False)
class Step:
    """A prepared step.

    ``note`` is shown beside its row; ``reserved_bytes`` is memory it set aside in advance; ``shows_memory`` is False where its
    memory cannot be seen from outside; ``keeps`` holds on to what it works on.
    """

    run: Callable[[], Answer]
    note: str = ""
    reserved_bytes: int | None = None
    shows_memory: bool = True
    keeps: object = None


@dataclass(frozen=True)
class Peer:
    """A method: its name, the family that ``--peer`` selects, the package it needs, and whether it clips each record."""

    name: str
    family: str
    prepare: Callable[[Task], Step]
    package: str | None = None
    private: bool = True

    def step_for(self, task: Task) -> Step:
        """The prepared step; NotRun with the reason where it cannot be done."""
        if self.package is not None:
            require(self.package)
        return self.prepare(task)


def require(package: str) -> None:
    """NotRun unless the package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        raise NotRun(f"not installed: {package}") from None


def clip_weights(squared_norms: Tensor) -> Tensor:
    """min(1, bound / norm) of each record."""
    return torch.clamp(CLIP / squared_norms.sqrt().clamp_min(1e-12), max=1.0)


def clipped_sum(names: Iterable[str], samples: list[Tensor]) -> Answer:
    """Clips and adds up gradients (records, *shape), one tensor for each parameter."""
    weights = clip_weights(torch.stack([sample.flatten(1).square().sum(1) for sample in samples]).sum(0))
    return {name: (weights @ sample.flatten(1)).view(sample.shape[1:]) for name, sample in zip(names, samples, strict=True)}


def added(answers: Iterable[Answer]) -> Answer:
    """The sum of the answers of several passes."""
    total: Answer = {}
    for answer in answers:
        total = {name: total[name] + value if total else value for name, value in answer.items()}
    return total


def relative_difference(found: Answer, wanted: Answer) -> float:
    """Distance of two answers over the length of the second, all parameters as one vector."""
    if found.keys() != wanted.keys():
        return float("inf")
    gap = sum(float((found[name].cpu().double() - value.cpu().double()).square().sum()) for name, value in wanted.items())
    length = sum(float(value.cpu().double().square().sum()) for value in wanted.values())
    return float((gap / length) ** 0.5) if length > 0 else float("inf")


_WARM_UP = 3


def captured(step: Callable[[], Answer], device: torch.device) -> Step:
    """The step as a graph; NotRun where there is no CUDA or torch refuses to capture it."""
    if device.type != "cuda":
        raise NotRun("CUDA graphs need a GPU")
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            answer = step()
    except RuntimeError as error:
        raise NotRun(f"cannot be captured: {str(error).splitlines()[0]}") from error

    def replay() -> Answer:
        graph.replay()
        return answer

    # A replay allocates nothing: what the step needs was set aside while it was captured.
    return Step(replay, reserved_bytes=torch.cuda.max_memory_allocated(device) - before, keeps=step)
