"""The run that tests of interval certificates copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from interval_runs import digits_of, make_run

from twinproof.data.record import Dataset


@pytest.fixture(scope="session")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network with interval bounds; tests that change it work on a copy."""
    return make_run(tmp_path_factory.mktemp("bounded") / "run")


@pytest.fixture
def root(bounded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bounded, tmp_path / "run"))


@pytest.fixture
def figures(bounded: Path) -> Dataset:
    """Its data."""
    return digits_of(bounded)
