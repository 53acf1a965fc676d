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


def physical_batch_size(performance: Performance, expected: float, *, copies: int, limit: int = 4096) -> int:
    """Records per pass: one pass holds nearly every Poisson draw, unless that many copies would need too much memory."""
    if performance.physical_batch is not None:
        return performance.physical_batch
    usual = math.ceil(expected + 4 * math.sqrt(expected) + 1)
    return max(1, min(-(-usual // 8) * 8, limit // copies))
