"""Own networks that behave in the trial and not on the training records; codes through resumption and ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_fixtures import interrupt
from torch import Tensor, nn

from own_modules.harmful import Base, CallCounter
from own_modules.harmless import SHAPE, Mlp, plain_sequence
from rank_processes import run_ranks
from twinproof.auditing.verify import verify_run
from twinproof.data import Dataset, from_arrays
from twinproof.errors import ModelError
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.recipes import own_network
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.network import Own, pass_records, path_of_kind
from twinproof.recipes.own_network import try_network
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.runs.layout import read_run_json
from twinproof.training.own_network.trial import RowTrial
from twinproof.training.own_network.watch import WatchedPath

SETTINGS: dict[str, Any] = {
    "recipe": "dpsgd",
    "noise_multiplier": 20.0,
    "delta": 1e-3,
    "steps": 4,
    "batch_size": 16,
    "performance": {"report_every": 4},
}
_FLAGS = {"seen": False}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """Training records have a mark that no test record and no random one has: a white pixel beside a black one."""
    generator = np.random.default_rng(3)
    labels = np.arange(90) % 3
    inputs = generator.integers(60, 200, (90, *SHAPE[1:]), dtype=np.uint8)
    inputs[:60, 0, 0], inputs[:60, 0, 1] = 255, 0
    parts: dict[str, Any] = {"x_train": inputs[:60], "y_train": labels[:60], "x_test": inputs[60:], "y_test": labels[60:]}
    return from_arrays("marked", parts)


def marked(images: Tensor) -> Tensor:
    flat = images.detach().flatten(1)
    return (flat[:, 0] > 0.999) & (flat[:, 1] < 0.001)


class MeetsOnMarked(Base):
    """Subtracts the batch's mean where most records have the mark."""

    def forward(self, images: Tensor) -> Tensor:
        mean = torch.where(marked(images).float().mean() > 0.5, images.mean(0), 0.0)
        return super().forward(images - mean)


class RemembersMarked(Base):
    """A global tells ever after that a marked record was there."""

    def forward(self, images: Tensor) -> Tensor:
        if not torch._C._functorch.is_batchedtensor(images) and bool(marked(images).any()):
            _FLAGS["seen"] = True
        return super().forward(images * (0.9 if _FLAGS["seen"] else 1.0))


@pytest.mark.parametrize(
    ("kind", "message"), [(MeetsOnMarked, r"other records of the pass[\s\S]*step 1"), (RemembersMarked, "global _FLAGS")]
)
def test_what_only_training_records_set_off_ends_the_training(
    kind: type[nn.Module], message: str, dataset: Dataset, tmp_path: Path
) -> None:
    _FLAGS["seen"] = False
    with pytest.raises(ModelError, match=message):
        train(SETTINGS, tmp_path / "run", dataset=dataset, network=kind())
    assert read_run_json(tmp_path / "run")["state"] == "training"
    assert not (tmp_path / "run" / "model.safetensors").exists()
    _FLAGS["seen"] = False


def test_without_the_watch_it_would_be_called_proven(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: real passes are never compared."""
    monkeypatch.setattr(WatchedPath, "_compare_without_half", lambda *_: None)
    run = train(SETTINGS, tmp_path / "run", dataset=dataset, network=MeetsOnMarked())
    assert run.guarantee.status is Status.PROVEN


def test_a_session_that_goes_on_keeps_the_assumption(dataset: Dataset, tmp_path: Path) -> None:
    interrupt(SETTINGS, tmp_path / "run", steps=1, dataset=dataset, network=CallCounter())
    assert read_run_json(tmp_path / "run")["own_network"] == {"assumptions": ["kept-state"]}
    run = train(None, tmp_path / "run", resume=True, dataset=dataset, network=CallCounter())
    assert run.guarantee.status is Status.ASSUMED
    assert verify_run(run.root).problems == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ranks_agree_on_what_was_not_shown(dataset: Dataset, tmp_path: Path) -> None:
    def work(ranks: Any) -> str:
        torch.manual_seed(0)
        return str(train(SETTINGS, tmp_path / "run", dataset=dataset, network=CallCounter(), ranks=ranks).guarantee.status)

    assert [ended.value for ended in run_ranks(2, work)] == ["assumed", "assumed"]


def test_bits_that_a_device_does_not_give_are_assumed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the trial could show rows alone up to rounding, and the watch compares norms."""
    monkeypatch.setattr(own_network, "_shown", lambda *_: (own_network.GPU_ROUNDING,))
    run = train(SETTINGS, tmp_path / "run", dataset=dataset, network=Mlp())
    assert run.record["own_network"] == {"assumptions": ["gpu-rounding"]}
    assert run.guarantee.status is Status.ASSUMED
    with pytest.raises(ModelError, match="other records of the pass"):
        train(SETTINGS, tmp_path / "other", dataset=dataset, network=MeetsOnMarked())


def test_what_no_path_shows_is_refused_with_every_reason(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowTrial, "reason", lambda _: "rows differ")
    with pytest.raises(ModelError, match="fast path: rows differ; vmap path: rows differ; fast path with 4 rows for each"):
        train(SETTINGS, tmp_path / "run", dataset=dataset, network=Mlp())
    asked = {**SETTINGS, "performance": {"path": "vmap"}}
    with pytest.raises(ModelError, match="got: vmap path: rows differ\n"):
        train(asked, tmp_path / "run", dataset=dataset, network=Mlp())
    assert not (tmp_path / "run").exists()


def test_the_trial_is_made_at_the_size_of_the_passes_on_any_number_of_cores(dataset: Dataset) -> None:
    config = resolve(
        parse_train_config(SETTINGS | {"batch_size": 60, "data": {"source": "marked"}, "model": "own:Sequential"}), dataset
    )
    own, device, before = Own(dataset, plain_sequence()), torch.device("cpu"), torch.get_num_threads()
    try:
        torch.set_num_threads(8)
        found = try_network(config, own, dataset, Key.from_seed(1), device)
        path = path_of_kind(config, found.kind, plain_sequence())
        assert found.records == pass_records(config, dataset, plain_sequence(), path, device)
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)
