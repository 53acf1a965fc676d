"""Inputs as they are stored: integers 0..levels, or floats in [0, 1] that stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.errors import ConfigError, DataError
from twinproof.runs.certificates import UNKNOWN


def stored_levels(inputs: Tensor | NDArray[Any], levels: int, device: torch.device | None) -> Tensor:
    """``inputs`` as whole numbers of levels, float32, on ``device`` (where they are, without one).

    Guarantees
        Whatever does not lie on a level, or not in [0, levels], is refused: a certificate speaks of stored inputs.
    """
    given = torch.as_tensor(inputs.astype(np.int32) if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint16 else inputs)
    if given.ndim == 0:
        raise DataError("one number is no batch of inputs", where="certify", got="no dimension", wanted="(inputs, *shape)")
    if given.is_floating_point():
        scaled = given.to(torch.float64) * levels
        stored = scaled.round()
        # Float32 keeps k / levels to 2^-24 relative; anything further off was never a stored level.
        if not bool(((scaled - stored).abs() <= 1e-2).all()):
            raise DataError(
                "inputs do not lie on the stored levels",
                where="certify",
                got="values between two levels (or NaN)",
                wanted=f"multiples of 1/{levels} in [0, 1], or integers 0..{levels}",
                fix="pass the inputs as they are stored, or name the right number of levels",
            )
    else:
        stored = given.to(torch.float64)
    if stored.numel() and not (float(stored.min()) >= 0 and float(stored.max()) <= levels):
        raise DataError(
            "inputs lie outside the stored range",
            where="certify",
            got=f"{float(stored.min()):g}..{float(stored.max()):g}",
            wanted=f"0..{levels} levels",
        )
    return stored.to(device=device or given.device, dtype=torch.float32)


def check_numbering(inputs: int, labels: Sequence[int] | None, first_index: int, rows: int | None) -> None:
    """Refuses labels that do not belong to the inputs, and numbers that count nothing."""
    if labels is not None and len(labels) != inputs:
        raise DataError(
            "labels and inputs differ in number",
            where="certify",
            got=f"{len(labels)} labels for {inputs} inputs",
            wanted="one label for each input, or none at all",
        )
    if any(label < 0 and label != UNKNOWN for label in labels or ()):
        raise DataError(
            "a label is no class",
            where="certify",
            got=min(label for label in labels or () if label != UNKNOWN),
            wanted=f"0 or more, or {UNKNOWN} for a label that is not known",
            fix="-1 stands for an abstention, which would then count as correct",
        )
    if first_index < 0:
        raise ConfigError("inputs are numbered from 0", where="first_index", got=first_index, wanted="0 or more")
    if rows is not None and rows < 1:
        raise ConfigError("a forward pass needs rows", where="rows", got=rows, wanted="at least 1")
