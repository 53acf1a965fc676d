"""What may change speed and memory, and nothing else.

Guarantees
    No field here changes epsilon, delta, sensitivity or a radius. The plan and the guarantees are computed without looking at
    this record (test: random settings, equal plans, equal guarantees).
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Performance(BaseModel):
    """Speed and memory settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = "auto"
    physical_batch: int | None = Field(default=None, ge=1, description="records per pass; chosen from the batch size if unset")
    path: Literal["auto", "fast", "vmap"] = "auto"
    checkpoint_every: int = Field(default=100, ge=1, description="steps between checkpoints")
    report_every: int | None = Field(default=None, ge=1, description="steps between lines in metrics.jsonl; 20 lines if unset")


# On a CPU: rows of a pass, few enough to stay near the core; what a pass costs besides its rows, in rows of a small network;
# bytes of per-example gradients; and the fewest records that still make good matrix products, whatever a gradient takes.
_CPU_ROWS, _CPU_ROWS_LOST, _CPU_GRADIENT_BYTES, _CPU_FEWEST = 512, 24, 128 * 2**20, 8
_MULTIPLE = 8


def physical_batch_size(
    performance: Performance,
    expected: float,
    *,
    copies: int,
    limit: int = 4096,
    device: str = "cuda",
    parameters: int = 0,
    workers: int = 1,
) -> int:
    """Records per pass for Poisson draws of ``expected`` records.

    On a GPU one pass holds nearly every draw, unless that many copies would need too much memory. On a CPU small passes are
    faster, and their memory stays small however large the batch: the size is the one that costs least on average, where rows
    that only fill the last pass cost as much as others. ``parameters`` are those of the network; ``workers`` passes run side
    by side.
    """
    if performance.physical_batch is not None:
        return performance.physical_batch
    usual = _MULTIPLE * math.ceil((expected + 4 * math.sqrt(expected) + 1) / _MULTIPLE)
    most = min(usual, largest_pass(copies=copies, limit=limit, device=device, parameters=parameters))
    if device != "cpu":
        return most
    lost = _CPU_ROWS_LOST / copies
    sizes = range(_MULTIPLE, most + 1, _MULTIPLE) if most >= _MULTIPLE else (most,)
    return min(sizes, key=lambda size: expected_passes(expected, size * workers) * (size + lost))


def largest_pass(*, copies: int, limit: int = 4096, device: str = "cuda", parameters: int = 0) -> int:
    """The most records that one pass should hold: on a GPU for its memory, on a CPU also for its caches."""
    most = max(1, limit // copies)
    if device != "cpu":
        return most
    by_rows = _CPU_ROWS // copies
    by_gradients = _CPU_GRADIENT_BYTES // max(1, 4 * parameters)
    return min(most, max(_CPU_FEWEST, min(by_rows, by_gradients)))


def expected_passes(expected: float, size: int) -> float:
    """Mean number of passes of ``size`` records that a Poisson draw of ``expected`` records takes, by the normal limit."""
    deviation = math.sqrt(expected)
    most = math.ceil((expected + 6 * deviation + 1) / size)
    return sum(0.5 * math.erfc((number * size + 0.5 - expected) / (deviation * math.sqrt(2))) for number in range(most))
