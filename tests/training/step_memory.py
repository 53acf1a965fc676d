"""Run as a program of its own: peak memory of private steps that draw few and many records, in bytes, as JSON.

A test process has freed memory that a step could take again unseen; a fresh one has next to none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from training_problems import CLASSES, CPU, LEVELS, PLAN, problem

from speed.timing import step_bytes
from twinproof.data.record import Split
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath, RecordGradients, RecordLoss

RECORDS, FEATURES, ROWS = 65_536, 128, 128
FEW = 256


class Keeping(FastPath):
    """The planted bug: what a pass computed outlives it."""

    def __init__(self, model: nn.Module, loss: RecordLoss) -> None:
        super().__init__(model, loss)
        self.kept: list[RecordGradients] = []

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        self.kept.append(super().gradients(inputs, labels))
        return self.kept[-1]


def peak(folder: Path, split: Split, drawn: int, path: Callable[[nn.Module, RecordLoss], PerExamplePath]) -> int | None:
    """Peak bytes of one step that draws ``drawn`` of all records on average, in passes of one size."""
    plan = replace(PLAN, sample_rate=drawn / RECORDS, divisor=float(drawn))
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES)).double()
    given = problem(folder, plan=plan, rows=ROWS, path=path, split=split, model=model)
    return step_bytes(lambda: given.source.gradient(0), CPU)


def main() -> None:
    """The first step also loads what torch loads late; it is not counted."""
    torch.set_num_threads(1)
    inputs = np.random.default_rng(1).integers(0, LEVELS + 1, (RECORDS, FEATURES), dtype=np.uint8)
    split = Split(inputs, (np.arange(RECORDS) % CLASSES).astype(np.int64))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peak(folder, split, FEW, FastPath)
        found = {
            "few": peak(folder, split, FEW, FastPath),
            "all": peak(folder, split, RECORDS, FastPath),
            "all, kept": peak(folder, split, RECORDS, Keeping),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
