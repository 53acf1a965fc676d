"""A run whose network has interval bounds, trained on the embedded digits without privacy: quick, and with radii above zero."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
