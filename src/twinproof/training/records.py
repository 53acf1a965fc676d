"""Records on the device, served in passes of one fixed size, padded and masked.

A Poisson draw has a random size. Cutting it into passes of one size keeps memory constant, lets the step be compiled or
captured later, and makes a record's gradient independent of how many others were drawn beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinproof.data.record import Split


@dataclass(frozen=True)
class Pass:
    """``size`` rows of inputs in [0, 1] with labels; rows where ``present`` is False are zeros that stand for nobody."""

    inputs: Tensor
    labels: Tensor
    present: Tensor


class DeviceRecords:
    """A split of a data set held on a device as the integers it is stored as."""

    def __init__(self, split: Split, levels: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        stored = split.inputs if split.inputs.dtype == np.uint8 else split.inputs.astype(np.int32)
        self._stored = torch.from_numpy(np.ascontiguousarray(stored)).to(device)
        self._labels = torch.from_numpy(split.labels).to(device)
        self._levels = levels
        self._dtype = dtype

    def __len__(self) -> int:
        return int(self._labels.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the records lie."""
        return self._labels.device

    @property
    def labels(self) -> Tensor:
        """All labels."""
        return self._labels

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """Inputs in [0, 1]."""
        return self._stored[rows].to(self._dtype) / self._levels

    def take(self, rows: Tensor, present: Tensor) -> Pass:
        """The records ``rows``; what stands where ``present`` is False is nobody's, whatever its row says."""
        # Not even masked may anybody's record stand in a row that only fills the pass.
        inputs = self.inputs(rows)
        inputs = torch.where(present.view(-1, *(1 for _ in inputs.shape[1:])), inputs, 0)
        return Pass(inputs, torch.where(present, self._labels[rows], 0), present)

    def passes(self, indices: Tensor, size: int) -> Iterator[Pass]:
        """The records ``indices`` in passes of exactly ``size`` rows; no pass at all for an empty draw."""
        for chunk in _chunks(indices, size):
            rows = torch.cat([chunk, chunk.new_zeros(size - len(chunk))])
            yield self.take(rows, torch.arange(size, device=self.device) < len(chunk))


def _chunks(indices: Tensor, size: int) -> Iterator[Tensor]:
    return (indices[start : start + size] for start in range(0, len(indices), size))
