"""What is measured: a network, its inputs, and how many records and copies one step takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from twinproof.layers.networks import build_network
from twinproof.training.passes import largest_pass

CLASSES = 10
CLIP = 0.1


@dataclass(frozen=True)
class Workload:
    """A network with its input shape, the batches measured by default and the records of one pass, by kind of device.

    A pass is what is in memory at a time: every method takes a batch in such passes, since per-example gradients of 8,192
    records of a large network fit no memory. twinproof and the controls on a CPU cut them further, see :meth:`Task.cut`.
    """

    name: str
    network: str
    shape: tuple[int, ...]
    batches: dict[str, tuple[int, ...]]
    records_per_pass: dict[str, int]

    def model(self, device: torch.device) -> nn.Module:
        """The network, always with the same weights."""
        torch.manual_seed(0)
        return build_network(self.network, self.shape, CLASSES).to(device)


_LARGE_BATCHES = {"cpu": (64,), "cuda": (64, 512, 2048, 8192)}
WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "mnist-cnn",
            "tramer-boneh-cnn",
            (1, 28, 28),
            {"cpu": (64, 256, 2048), "cuda": (64, 512, 2048, 8192)},
            {"cpu": 4096, "cuda": 8192},
        ),
        Workload("wrn-16-4", "wrn-16-4", (3, 32, 32), _LARGE_BATCHES, {"cpu": 32, "cuda": 256}),
        Workload("resnet-18", "resnet-18", (3, 32, 32), _LARGE_BATCHES, {"cpu": 16, "cuda": 128}),
        Workload("small-vit", "small-vit", (3, 32, 32), _LARGE_BATCHES, {"cpu": 64, "cuda": 512}),
    )
}


@dataclass(frozen=True, eq=False)
class Task:
    """One step to be done: ``inputs`` (records, copies, *shape) and ``labels`` (records,), in passes of a given size."""

    workload: Workload
    inputs: Tensor
    labels: Tensor
    records_per_pass: int

    @property
    def records(self) -> int:
        """Records of one step."""
        return self.inputs.shape[0]

    @property
    def copies(self) -> int:
        """Copies of each record."""
        return self.inputs.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the records lie."""
        return self.inputs.device

    def model(self) -> nn.Module:
        """A network of this task's own."""
        return self.workload.model(self.device)

    def passes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The records, one pass after the other."""
        size = self.records_per_pass
        yield from zip(torch.split(self.inputs, size), torch.split(self.labels, size), strict=True)

    def cut(self) -> Task:
        """The same in passes no larger than those a run of twinproof takes on a CPU, all of one size if that can be."""
        if self.device.type != "cpu":
            return self
        parameters = sum(value.numel() for value in self.model().parameters())
        most = largest_pass(copies=self.copies, device=self.device.type, parameters=parameters)
        passes = math.ceil(self.records / min(most, self.records_per_pass))
        return replace(self, records_per_pass=math.ceil(self.records / passes))

    def first(self, records: int) -> Task:
        """The same with a few records only, in one pass."""
        return Task(self.workload, self.inputs[:records].clone(), self.labels[:records].clone(), records)


def make_task(workload: Workload, records: int, copies: int, device: torch.device, records_per_pass: int | None) -> Task:
    """Random records: the speed of these networks does not depend on what they see."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(records, copies, *workload.shape, generator=generator)
    labels = torch.randint(0, CLASSES, (records,), generator=generator)
    size = records_per_pass or workload.records_per_pass[device.type]
    return Task(workload, inputs.to(device), labels.to(device), min(size, records))
