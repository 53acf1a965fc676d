"""Records on the device, served in passes of one fixed size, padded and masked.

A Poisson draw has a random size. Cutting it into passes of one size keeps memory constant, lets the step be compiled or
captured later, and makes a record's gradient independent of how many others were drawn beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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

    def passes(self, indices: NDArray[np.int64], size: int) -> Iterator[Pass]:
        """The records ``indices`` in passes of exactly ``size`` rows; no pass at all for an empty draw."""
        for start in range(0, len(indices), size):
            chunk = torch.from_numpy(indices[start : start + size]).to(self.device)
            missing = size - len(chunk)
            rows = torch.cat([chunk, chunk.new_zeros(missing)]) if missing else chunk
            present = torch.arange(size, device=self.device) < len(chunk)
            inputs = self.inputs(rows)
            if missing:
                # Rows that only fill the pass must not carry anybody's record, not even masked.
                inputs[len(chunk) :] = 0
            yield Pass(inputs, torch.where(present, self._labels[rows], 0), present)
