"""What a training step cannot do without: arithmetic and memory traffic of one record, whatever the method.

The arithmetic is that of one forward and one backward of plain training. Norms, clipping and per-example gradients come on top:
a private method is measured against what training itself needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from speed.timing import Limits
from speed.workloads import Task


@dataclass(frozen=True)
class Cost:
    """Floating-point operations and bytes moved for one record with all its copies."""

    operations: float
    bytes_moved: float

    def fastest(self, limits: Limits) -> tuple[float, str]:
        """Records per second at which the device runs out, and of what: 'arithmetic' or 'bandwidth'."""
        by_arithmetic = limits.operations_per_second / self.operations
        by_bandwidth = limits.bytes_per_second / self.bytes_moved
        return (by_arithmetic, "arithmetic") if by_arithmetic <= by_bandwidth else (by_bandwidth, "bandwidth")


def training_cost(task: Task) -> Cost:
    """The cost of one record of ``task``, counted on a pass of two."""
    few = task.first(2)
    model, rows = few.model(), few.inputs.flatten(0, 1)
    targets = few.labels.repeat_interleave(few.copies)
    kept = _KeptBytes(model)
    counter = FlopCounterMode(display=False)
    with counter, saved_tensors_hooks(kept.note, lambda tensor: tensor):
        torch.autograd.backward(F.cross_entropy(model(rows), targets))
    # What the forward keeps for the backward is written once and read once.
    return Cost(counter.get_total_flops() / few.records, 2 * kept.total / few.records)


def forward_cost(model: nn.Module, row: Tensor) -> Cost:
    """The cost of one input of a forward pass: its arithmetic, and reading the input."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(row)
    return Cost(counter.get_total_flops() / row.shape[0], row.nbytes / row.shape[0])


class _KeptBytes:
    """Bytes that a forward keeps for its backward, each tensor once and parameters not at all."""

    def __init__(self, model: nn.Module) -> None:
        self.total = 0
        self._seen = {value.untyped_storage().data_ptr() for value in model.parameters()}

    def note(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self._seen:
            self._seen.add(place)
            self.total += tensor.untyped_storage().nbytes()
        return tensor
