"""A run whose network has interval bounds, trained on the embedded digits without privacy: quick, and with radii above zero.

Its fixtures are for test files to import by name.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from twinproof.data.record import Dataset
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data


def make_run(root: Path) -> Path:
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": "interval-cnn", "steps": 60, "seed": 1}
    train({**settings, "performance": {"device": "cpu"}}, root)
    return root


@cache
def digits_of(root: Path) -> Dataset:
    """The data of that run."""
    return load_run_data(Run.open(root))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a run; tests that change it work on a copy."""
    return make_run(tmp_path_factory.mktemp("bounded") / "run")


@pytest.fixture
def root(bounded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bounded, tmp_path / "run"))


@pytest.fixture
def figures(bounded: Path) -> Dataset:
    """Its data."""
    return digits_of(bounded)
