"""The device's own limits, measured in the same run: matrix products and memory traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from speed.timing import seconds_of

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
