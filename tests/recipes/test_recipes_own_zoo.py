"""The zoo of own networks through real trainings: no harmless one is refused, no harmful one is called proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from own_modules import harmful
from own_modules.harmful import DRAWS, HARMFUL, MIXING, STATE, TENSORS, CallCounter, GlobalCounter, LateWrite
from own_modules.harmless import PROVEN, SHAPE, plain_sequence
from twinproof.data import Dataset, from_arrays
from twinproof.errors import ModelError
from twinproof.guarantee import Status
from twinproof.recipes.train import train
from twinproof.runs.layout import read_run_json
from twinproof.runs.run import Run

SETTINGS: dict[str, Any] = {
    "recipe": "dpsgd",
    "noise_multiplier": 20.0,
    "delta": 1e-3,
    "steps": 6,
    "batch_size": 16,
    # On a GPU rows are equal up to rounding only, and a module of the zoo keeps tensors where no device reaches them.
    "performance": {"report_every": 6, "device": "cpu"},
}

ASSUMED = (LateWrite, CallCounter, GlobalCounter)


@pytest.fixture(autouse=True)
def no_calls_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have called the network that counts in a global."""
    monkeypatch.setitem(harmful._GLOBAL, "calls", 0)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    generator = np.random.default_rng(3)
    labels = np.arange(90) % 3
    inputs = generator.integers(0, 12, (90, *SHAPE[1:]), dtype=np.uint8) + labels.astype(np.uint8)[:, None, None]
    inputs[:60, 0, 0], inputs[:60, 0, 1] = 255, 0  # no record of the trial looks like this one
    parts = {"x_train": inputs[:60], "y_train": labels[:60], "x_test": inputs[60:], "y_test": labels[60:]}
    return from_arrays("zoo", parts)


def trained(kind: type[nn.Module], dataset: Dataset, out: Path, **changes: Any) -> Run:
    torch.manual_seed(0)
    return train(SETTINGS | changes, out, dataset=dataset, network=kind())


@pytest.mark.parametrize("kind", PROVEN, ids=lambda kind: kind.__name__)
def test_harmless_networks_are_proven(kind: type[nn.Module], dataset: Dataset, tmp_path: Path) -> None:
    run = trained(kind, dataset, tmp_path / "run")
    assert run.record["own_network"] == {"assumptions": []}
    assert run.guarantee.status is Status.PROVEN


REFUSALS = (
    [(kind, "tensor of its own|changes a buffer|state holds more") for kind in TENSORS if kind is not LateWrite]
    + [(kind, "depends on the other records|depends on the row") for kind in MIXING]
    + [(kind, "random numbers|remembers earlier passes") for kind in DRAWS]
    + [(kind, "remembers earlier passes|depends on the other records") for kind in STATE if kind not in ASSUMED]
)


@pytest.mark.parametrize(("kind", "message"), REFUSALS, ids=lambda value: getattr(value, "__name__", ""))
def test_harmful_networks_are_refused(kind: type[nn.Module], message: str, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        trained(kind, dataset, tmp_path / "run")
    assert caught.value.where
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("kind", ASSUMED, ids=lambda kind: kind.__name__)
def test_what_waits_longer_than_a_training_is_not_proven(kind: type[nn.Module], dataset: Dataset, tmp_path: Path) -> None:
    run = trained(kind, dataset, tmp_path / "run")
    assert run.record["own_network"] == {"assumptions": ["kept-state"]}
    assert run.guarantee.status is Status.ASSUMED


@pytest.mark.parametrize(
    ("kind", "message"), [(LateWrite, "tensor of its own[\\s\\S]*seen"), (CallCounter, r"CallCounter\.calls")]
)
def test_what_begins_later_ends_the_training(kind: type[nn.Module], message: str, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        trained(kind, dataset, tmp_path / "run", steps=80, seed=1)
    assert read_run_json(tmp_path / "run")["state"] == "training"
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_zoo_is_large_enough() -> None:
    assert len(PROVEN) >= 20
    assert len(REFUSALS) + len(ASSUMED) == len(HARMFUL)
    assert len(HARMFUL) >= 30


def test_layers_of_torch_alone_are_proven(dataset: Dataset, tmp_path: Path) -> None:
    run = train(SETTINGS, tmp_path / "run", dataset=dataset, network=plain_sequence())
    assert run.guarantee.status is Status.PROVEN
