"""Fixtures of this folder, for its test files to import by name.

A ``conftest.py`` beside that of all tests would be a second module of that name, which mypy does not take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import StopAfter, Stopped, one_thread, run_json, write_blobs
from torch import nn

from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.layers.networks import build_network
from twinproof.layers.noise_placement import NoiseSplit, split_at_noise, with_noise
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train


def interrupt(settings: dict[str, Any], root: Path, *, steps: int, **given: Any) -> None:
    """Leaves a run in the middle of its training, after ``steps`` steps; its last checkpoint may be older."""
    with pytest.raises(Stopped):
        train(settings, root, progress=StopAfter(steps - 1), **given)
    assert run_json(root)["state"] == "training"


def resolved(settings: Mapping[str, Any]) -> tuple[ResolvedConfig, Dataset]:
    """Settings with nothing left open, and their data."""
    config = parse_train_config(settings)
    dataset = load(config.data)
    return resolve(config, dataset), dataset


def fresh_network(seed: int, shape: tuple[int, ...], name: str = "mlp", *, width: int = 1) -> nn.Module:
    """The network for three classes that a run of this seed begins with, before noise or learned weights are put in."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key.from_seed(seed).seed("initial weights"))
        return build_network(name, shape, 3, width=width)


def noisy_start(config: ResolvedConfig, dataset: Dataset) -> nn.Sequential:
    """The network of a run with a noise layer, before its first step."""
    assert config.noise_layer is not None
    assert config.seed is not None
    network = fresh_network(config.seed, dataset.shape)
    return with_noise(network, dataset.shape, config.noise_layer.form, config.sigma)


def parts_of(network: nn.Module) -> NoiseSplit:
    """What lies before and behind the network's noise."""
    split = split_at_noise(network.eval())
    assert split is not None
    return split


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    """Every test of the file that imports this; what its larger fixtures train needs ``one_thread`` of its own."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the clusters, one for all tests of a file: whoever changes records writes a file of their own."""
    return write_blobs(tmp_path_factory.mktemp("data"))
