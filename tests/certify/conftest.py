"""One small trained run, and its data, for all tests of certification; tests work on copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinproof.data.record import Dataset
from twinproof.recipes.run_data import load_run_data
from twinproof.recipes.train import train
from twinproof.runs.run import Run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained") / "run"
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 5, "seed": 1}
    train({**settings, "performance": {"device": "cpu"}}, root)
    return root


@pytest.fixture(scope="session")
def dataset(trained: Path) -> Dataset:
    return load_run_data(Run.open(trained))
