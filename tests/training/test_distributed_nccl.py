"""On a GPU: sums travel by NCCL and stay on the device. One rank is enough to run every line; more need more GPUs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from twinproof.compute.process_ranks import join
from twinproof.compute.ranks import Ranks
from twinproof.recipes.train import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in here.items():
        monkeypatch.setenv(name, str(value))
    with join() as joined:
        yield joined


def test_sums_stay_on_the_device(ranks: Ranks) -> None:
    ranks.check_device(torch.device("cuda"))
    numbers = torch.randn(10_000, dtype=torch.float64, device="cuda")
    found = ranks.sum_in_order(numbers)
    assert found.is_cuda
    assert torch.equal(found, numbers)


def test_the_recorded_step_of_one_rank_is_that_of_one_process(ranks: Ranks, tmp_path: Path) -> None:
    settings = {
        "data": {"source": "digits"},
        "recipe": "dpcert-gaussian",
        "sigma": 0.25,
        "noise_multiplier": 2.0,
        "delta": 1e-4,
        "steps": 12,
        "seed": 5,
        "performance": {"device": "cuda"},
    }
    train(settings, tmp_path / "alone")
    train(settings, tmp_path / "shared", ranks=ranks)
    alone, shared = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "shared"))
    assert all(torch.equal(alone[name], shared[name]) for name in alone)
