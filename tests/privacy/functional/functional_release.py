"""What the tests of the functional mechanism share: ledgers, records, and releases without noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.privacy import discrete_laplace as grid_laplace
from twinproof.privacy.ledger import Ledger


def new_ledger(folder: Path, name: str = "ledger.jsonl") -> Ledger:
    return Ledger.create(folder / name, config_sha256="0" * 64, delta=1e-5)


def some_records(count: int, features: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random features, some outside any ball, and labels."""
    generator = torch.Generator().manual_seed(seed)
    features_ = torch.randn(count, features, dtype=torch.float64, generator=generator)
    return features_ * 3, torch.randint(classes, (count,), generator=generator)


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases then hold the sums themselves."""

    def zeros(*names: object, scale: int, count: int) -> NDArray[np.int64]:
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(grid_laplace, "discrete_laplace", zeros)
