"""Fixtures of this folder, for its test files to import by name.

A ``conftest.py`` beside that of all tests would be a second module of that name, which mypy does not take.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import StopAfter, Stopped, one_thread, run_json, write_blobs

from twinproof.recipes.train import train


def interrupt(settings: dict[str, Any], root: Path, *, steps: int, **given: Any) -> None:
    """Leaves a run in the middle of its training, after ``steps`` steps; its last checkpoint may be older."""
    with pytest.raises(Stopped):
        train(settings, root, progress=StopAfter(steps - 1), **given)
    assert run_json(root)["state"] == "training"


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    """Every test of the file that imports this; what its larger fixtures train needs ``one_thread`` of its own."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the clusters, one for all tests of a file: whoever changes records writes a file of their own."""
    return write_blobs(tmp_path_factory.mktemp("data"))
