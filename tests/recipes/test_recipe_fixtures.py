"""That fixtures which a file only imports are in force there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from small_runs import RECORDS

from twinproof.data.load import load
from twinproof.recipes.config import parse_train_config


@pytest.fixture(scope="module", autouse=True)
def _several_threads() -> Iterator[None]:
    """Comes first, as its scope is larger: what a test finds is not just what the machine was started with."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3, "one thread is for the test alone"
    torch.set_num_threads(before)


def test_a_test_runs_on_one_thread() -> None:
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("_again", range(2))
def test_the_clusters_can_be_loaded_by_every_test(source: Path, _again: int) -> None:
    config = parse_train_config({"data": {"source": str(source), "ranges": {"*": [0.0, 1.0]}}, "recipe": "dpsgd"})
    assert len(load(config.data).train) == RECORDS
