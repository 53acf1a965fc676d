"""Progress of a run: lines about the test set for everybody, lines about the training records for the owner."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.evaluation.accuracy import clean_accuracy
from twinproof.files import append_line, canonical_json, write_atomic
from twinproof.privacy.accounting import PoissonGaussianEvent, epsilon_pld
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.resolve import spent_on_data, spent_on_redistribution
from twinproof.rounding import round_up
from twinproof.runs import private_files
from twinproof.runs.layout import RunLayout
from twinproof.runs.reading import read_lines
from twinproof.runs.run_model import MetricsLine
from twinproof.training.gradient_source import StepDiagnostics
from twinproof.training.records import DeviceRecords

_LINES = 20


class Reporter:
    """Writes ``metrics.jsonl`` (test set only) and ``private/diagnostics.jsonl``."""

    def __init__(self, layout: RunLayout, config: ResolvedConfig, dataset: Dataset, device: torch.device) -> None:
        self._layout = layout
        self._config = config
        self._dataset = dataset
        self._steps = config.steps
        self._every = config.performance.report_every or math.ceil(self._steps / _LINES)
        test = DeviceRecords(dataset.test, dataset.levels, device)
        self._inputs, self._labels = test.inputs(slice(None)), test.labels
        self._pending: list[StepDiagnostics] = []

    def due(self, done: int) -> bool:
        """Whether a line is due after ``done`` steps."""
        return done % self._every == 0 or done == self._steps

    def rewind(self, step: int) -> None:
        """Forgets lines after the checkpoint that training goes on from; they will be written again."""
        kept = [line for line in self._lines() if line["step"] <= step]
        write_atomic(self._layout.metrics, "".join(canonical_json(line) + "\n" for line in kept).encode())
        private_files.rewind_diagnostics(self._layout.private, step)

    def reported(self, step: int) -> bool:
        """Whether there is a line about ``step``."""
        return any(line["step"] == step for line in self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        return read_lines(self._layout.metrics, MetricsLine)

    def report(self, model: nn.Module, done: int) -> None:
        """Adds a line about the test set, which is public, and the privacy spent, which depends on the plan alone."""
        accuracy = clean_accuracy(model, self._inputs, self._labels)
        line = {
            "step": done,
            "epoch": done * self._config.sample_rate,
            "epsilon": self._spent(done),
            "test_accuracy": accuracy.correct / accuracy.total,
            "test_loss": accuracy.loss,
        }
        if not math.isfinite(accuracy.loss):
            raise RunError(
                "training has diverged",
                where=f"step {done}",
                got=f"a loss of {accuracy.loss} on the test set",
                wanted="finite weights",
                fix="start a new run with a smaller learning_rate",
            )
        append_line(self._layout.metrics, canonical_json(line))

    def diagnose(self, seen: StepDiagnostics) -> None:
        """Remembers what a step saw of the training records, for the owner."""
        self._pending.append(seen)

    def flush(self) -> None:
        """Writes the remembered lines into ``private/``."""
        for seen in self._pending:
            private_files.append_diagnostics(self._layout.private, seen.as_dict())
        self._pending.clear()

    def _spent(self, done: int) -> float | None:
        config = self._config
        if config.noise_multiplier is None:
            return None
        event = PoissonGaussianEvent(config.sample_rate, config.noise_multiplier, done)
        before = [*spent_on_data(self._dataset), *spent_on_redistribution(config)]
        return round_up(epsilon_pld([*before, event], config.delta))
