"""Runs of format 1 that the repository keeps, copied to be lied about: every digest is put right, as a liar would do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from synthetic_run import bind, canonical, forge_ledger, forge_run, forge_settings, sha256
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof_verify import Originals, epsilon, inspection
from twinproof_verify.ledger import Ledger

KEPT = Path(__file__).parent.parent / "fixtures" / "format-1"
DEMO, NOISY, TWO_NOISES = "demo", "hgm-pixeldp", "stobatch"


@cache
def digits() -> Originals:
    """The test set of all kept runs."""
    test = load(DataConfig(source="digits")).test
    return Originals(test.inputs, test.labels)


def count_each_ledger_once(patched: pytest.MonkeyPatch) -> None:
    """Epsilon is recomputed once for each story of spendings: that it is right is tested elsewhere, and takes seconds."""
    known: dict[str, Any] = {}
    recompute = epsilon.recompute

    def remembered(ledger: Ledger) -> Any:
        story = repr((ledger.spendings, ledger.delta, ledger.countable))
        if story not in known:
            known[story] = recompute(ledger)
        return known[story]

    patched.setattr(inspection, "recompute", remembered)


def copied(name: str, folder: Path) -> Path:
    """A copy of a kept run."""
    return Path(shutil.copytree(KEPT / name, folder / name))


def reconfigured(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Another ``config``, bound by the ledger."""
    forge_run(lambda run: change(run["config"]))(root)
    config = json.loads((root / "run.json").read_text())["config"]
    forge_ledger(lambda story: story[0][1].update(config_sha256=sha256(canonical(config).encode())))(root)


def reweighted(root: Path, change: Callable[[dict[str, NDArray[Any]]], Any]) -> None:
    """Other weights, bound by the ledger, the certificates and the attacks."""
    weights = {name: np.array(value) for name, value in load_file(root / "model.safetensors").items()}
    change(weights)
    (root / "model.safetensors").write_bytes(save(weights))
    digest = sha256((root / "model.safetensors").read_bytes())
    forge_ledger(lambda story: story[-1][1].update(model_sha256=digest))(root)
    forge_settings(lambda settings: settings.update(model_sha256=digest))(root)
    if (root / "attacks.json").is_file():
        attacks = json.loads((root / "attacks.json").read_text())
        (root / "attacks.json").write_text(json.dumps({**attacks, "model_sha256": digest}))
    bind(root)
