"""The memory that one step takes on top of what was there before it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def step_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """Peak bytes of one call above the level before it; None where the system cannot say."""
    gc.collect()
    return _on_gpu(work, device) if device.type == "cuda" else _on_cpu(work)


def _on_gpu(work: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _on_cpu(work: Callable[[], object]) -> int | None:
    """By the kernel's high-water mark of resident memory, reset before the call (Linux only)."""
    try:
        # Pages that the allocator keeps from earlier steps would be used again and not be seen.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
        before = resident_bytes(_STATUS.read_text(), "VmRSS")
        work()
        return max(0, resident_bytes(_STATUS.read_text(), "VmHWM") - before)
    except (OSError, AttributeError):
        return None


def resident_bytes(status: str, field: str) -> int:
    """One field of ``/proc/self/status``, which counts in kB."""
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
