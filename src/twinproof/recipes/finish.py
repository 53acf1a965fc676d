"""The last moments of a run: weights, the ledger's close, the promise, and the end of the secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from twinproof.data.record import Dataset
from twinproof.evaluation.accuracy import Accuracy, clean_accuracy
from twinproof.extensions import Plugin
from twinproof.files import sha256_file, write_atomic
from twinproof.privacy.accounting import Spending, spending
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.guarantees import not_yet_certified, privacy_guarantee
from twinproof.recipes.own import own_network_assumptions
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.resolve import plan_of
from twinproof.runs.environment import utc_now
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.runs.private_files import forget_training_secrets, save_times
from twinproof.runs.record import COMPLETE, file_digests, write_run_json
from twinproof.training.checkpoint import FILE as CHECKPOINT_FILE
from twinproof.training.own_network.tensors import check_state_dict
from twinproof.training.records import DeviceRecords


def finish_run(
    root: Path, config: ResolvedConfig, dataset: Dataset, ledger: Ledger, model: nn.Module, *, created: str, seconds: float
) -> None:
    """Completes a run. Each step can be repeated: a kill in between is mended by resuming from the last checkpoint.

    Guarantees
        No released file says when training ended: with ``created`` it would tell how long the steps took, and so how many
        records they drew.
    """
    layout = RunLayout(root)
    weights = {name: value.detach().cpu().contiguous() for name, value in check_state_dict(model).items()}
    write_atomic(layout.model, save(weights))
    spent = spending(ledger.events(), config.delta) if find_recipe(config.recipe).counted(config.variant) else None
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
    accuracy: Accuracy = clean_accuracy(model, test.inputs(slice(None)), test.labels)
    record |= {
        "state": COMPLETE,
        "created": created,
        "guarantees": {
            "privacy": privacy_guarantee(
                config, dataset, spent, own_network_assumptions(record), [Plugin(**one) for one in record.get("plugins", [])]
            ).as_dict(),
            "robustness": not_yet_certified(config.sigma).as_dict(),
        },
        "privacy": _privacy_block(config, spent),
        "accuracy": accuracy.as_dict(),
        "files": file_digests(root, (layout.model.name, layout.ledger.name, layout.metrics.name)),
    }
    save_times(layout.private, finished=utc_now(), seconds=seconds)
    write_run_json(root, record)
    forget_training_secrets(layout.private, CHECKPOINT_FILE)


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
