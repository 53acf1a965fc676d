"""Timing by turns, the memory of a step, and the device's own limits, all measured in the same run.

Each turn runs every method once, so that a busy moment of the machine strikes all of them alike.
"""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

SHORTEST_TURN = 0.1
_MOST_CALLS = 1000


@dataclass(frozen=True)
class Times:
    """Seconds of one method, turn by turn."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over turns."""
        return statistics.median(self.seconds)

    def speed_over(self, other: Times) -> float:
        """How many times as fast as ``other``: the median of the ratios inside each turn."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True))


def wait_for(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, until its result is there."""
    wait_for(device)
    began = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - began


def take_turns(
    methods: Mapping[str, Callable[[], object]], turns: int, device: torch.device, *, shortest: float = SHORTEST_TURN
) -> dict[str, Times]:
    """Seconds of one call of each method over ``turns`` turns.

    A turn before them warms up and says how often a method is called in its turn: so often that the turn lasts ``shortest``
    seconds, since a single call of a millisecond is mostly noise.
    """
    calls = {name: calls_for(seconds_of(work, device), shortest) for name, work in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns):
        for name, work in methods.items():
            seconds[name].append(seconds_of(_repeated(work, calls[name]), device) / calls[name])
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def calls_for(seconds: float, shortest: float) -> int:
    """How many calls of so many seconds fill a turn."""
    return max(1, min(_MOST_CALLS, math.ceil(shortest / max(seconds, 1e-9))))


def _repeated(work: Callable[[], object], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            work()

    return run


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


_SIDE = {"cpu": 2048, "cuda": 8192}
_COPIED = {"cpu": 1 << 26, "cuda": 1 << 31}  # bytes; far more than the caches hold
_ROUNDS = 7


@dataclass(frozen=True)
class Limits:
    """What was measured: operations per second of a float32 matrix product, bytes per second of a copy (read plus write)."""

    operations_per_second: float
    bytes_per_second: float

    def as_dict(self) -> dict[str, float]:
        """For the JSON file."""
        return {"matmul_flop_per_second": self.operations_per_second, "copy_bytes_per_second": self.bytes_per_second}


def measure_limits(device: torch.device) -> Limits:
    """Both limits, each the best of several rounds.

    The matrix product runs in the fastest mode that float32 layers may use (TF32 on a GPU, as cuDNN does by default).
    """
    side = _SIDE[device.type]
    left, right = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    product = torch.empty(side, side, device=device)
    with _fastest_float32():
        operations = 2 * side**3 / _least_seconds(lambda: torch.mm(left, right, out=product), device)
    source = torch.rand(_COPIED[device.type] // 4, device=device)
    target = torch.empty_like(source)
    moved = 2 * source.nbytes / _least_seconds(lambda: target.copy_(source), device)
    return Limits(operations, moved)


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    return min(seconds_of(work, device) for _ in range(_ROUNDS))


@contextmanager
def _fastest_float32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
