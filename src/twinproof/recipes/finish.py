"""Progress of a run, and its last moments: weights, the ledger's close, the promise, the end of the secrets."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.evaluation.accuracy import clean_accuracy
from twinproof.extensions import Plugin
from twinproof.files import append_line, canonical_json, sha256_file, write_atomic
from twinproof.guarantee import round_up
from twinproof.privacy.accounting import PoissonGaussianEvent, Spending, epsilon_pld, spending
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.guarantees import not_yet_certified, privacy_guarantee
from twinproof.recipes.own_network import own_network_assumptions
from twinproof.recipes.resolve import plan_of, spent_on_data, spent_on_redistribution
from twinproof.runs import private_files
from twinproof.runs.layout import COMPLETE, FORMAT, RunLayout, file_digests, read_run_json, utc_now, write_run_json
from twinproof.runs.reading import MetricsLine, read_lines
from twinproof.training.loop import CHECKPOINT_FILE, check_state_dict
from twinproof.training.passes import DeviceRecords
from twinproof.training.sources import StepDiagnostics


def finish_run(
    root: Path,
    config: ResolvedConfig,
    dataset: Dataset,
    ledger: Ledger,
    model: nn.Module,
    *,
    seconds: float,
    assumptions: tuple[str, ...] = (),
) -> None:
    """Completes a run; if it is killed here, resuming from the last checkpoint repeats it.

    ``assumptions`` are added to those of a promise. No released file says when training ended: with ``created`` it would tell
    how long the steps took, and so how many records they drew.
    """
    layout = RunLayout(root)
    weights = {name: value.detach().cpu().contiguous() for name, value in check_state_dict(model).items()}
    write_atomic(layout.model, save(weights))
    spent = spending(ledger.events(), config.delta) if config.counted else None
    if not ledger.closed:
        ledger.append(
            "close",
            {
                "steps": ledger.reserved_steps,
                "model_sha256": sha256_file(layout.model),
                "epsilon": None if spent is None else spent.epsilon,
                "epsilon_rdp": None if spent is None else spent.epsilon_rdp,
            },
        )
    record = read_run_json(root)
    device = next(model.parameters()).device
    test = DeviceRecords(dataset.test, dataset.levels, device)
    accuracy = clean_accuracy(model, test.inputs(slice(None)), test.labels)
    plugins = [Plugin(**one) for one in record.get("plugins", [])]
    privacy = privacy_guarantee(config, dataset, spent, own_network_assumptions(record), plugins)
    if privacy.assumptions:
        privacy = replace(privacy, assumptions=(*privacy.assumptions, *assumptions))
    record |= {
        "state": COMPLETE,
        "guarantees": {
            "privacy": privacy.as_dict(),
            "robustness": {} if record["format"] == FORMAT else not_yet_certified(config.sigma).as_dict(),
        },
        "privacy": _privacy_block(config, spent),
        "accuracy": accuracy.as_dict(),
        "files": file_digests(root, (layout.model.name, layout.ledger.name, layout.metrics.name)),
    }
    private_files.save_times(layout.private, finished=utc_now(), seconds=seconds)
    write_run_json(root, record)
    private_files.forget_training_secrets(layout.private, CHECKPOINT_FILE)


def _privacy_block(config: ResolvedConfig, spent: Spending | None) -> dict[str, Any] | None:
    if spent is None:
        return None
    plan = plan_of(config)
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "delta": spent.delta,
        "noise_multiplier": plan.noise_multiplier,
        "sample_rate": plan.sample_rate,
        "steps": plan.steps,
        "clip_norm": plan.clip_norm,
        "divisor": plan.divisor,
    }


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
