"""Large gradients in memory that is used again from pass to pass.

The gradients of one pass of a large network take tens or hundreds of megabytes, and an allocator gives such sizes back to the
system when they are freed. Getting them anew costs a page fault for each 4 KiB, more than the arithmetic that fills them.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Below it the allocator itself keeps freed memory; above it are the sizes worth keeping.
_SMALLEST = 1 << 20
_ALIGNMENT = 64  # that of torch's own memory: matrix products may round differently at other places


class _Slab:
    """Bytes that are lent to one tensor at a time; free again when nothing shares that tensor's memory any more."""

    def __init__(self, size: int) -> None:
        raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        self._bytes: NDArray[np.uint8] = raw[start : start + size]
        self._borrower: weakref.ref[NDArray[np.uint8]] | None = None

    @property
    def size(self) -> int:
        return int(self._bytes.size)

    @property
    def idle(self) -> bool:
        return self._borrower is None or self._borrower() is None

    def lend(self, count: int) -> Tensor:
        """``count`` bytes. The tensor's storage, which all its views share, keeps the array alive, and the array tells us."""
        array = self._bytes[:count]
        self._borrower = weakref.ref(array)
        return torch.from_numpy(array)


class Scratch:
    """Lends memory for large tensors on a CPU and keeps what comes back.

    Guarantees
        Two tensors that are alive at the same time never share memory, in whatever thread they were made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: list[_Slab] = []

    def empty(self, shape: Sequence[int], like: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor with unset entries on the device of ``like``, and in its dtype if none is given."""
        dtype = dtype or like.dtype
        count = math.prod(shape) * dtype.itemsize
        if like.device.type != "cpu" or count < _SMALLEST:
            return like.new_empty(shape, dtype=dtype)
        with self._lock:
            lent = self._slab(count).lend(count)
        return lent.view(dtype).view(tuple(shape))

    def release(self) -> None:
        """Forgets the memory that nobody uses."""
        with self._lock:
            self._slabs = [slab for slab in self._slabs if not slab.idle]

    def _slab(self, count: int) -> _Slab:
        """The smallest idle slab that fits; otherwise a new one, in the place of an idle one that is too small."""
        idle = sorted((slab for slab in self._slabs if slab.idle), key=lambda slab: slab.size)
        fitting = next((slab for slab in idle if count <= slab.size), None)
        if fitting is not None:
            return fitting
        if idle:
            self._slabs.remove(idle[-1])
        made = _Slab(count)
        self._slabs.append(made)
        return made


SCRATCH = Scratch()
"""The one of this process."""
