"""The data set record that every other room works with.

Inputs are kept as the integers they are stored as: a pixel 0..255, a feature on 65,536 levels between its declared bounds.
The network sees ``stored / levels``, a number in [0, 1]; radii and attack sizes are in that unit. Integers make the
certificate exact (docs/decisions/0002-noise-on-a-grid.md): adding grid noise to an integer is free of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import DataError


class InputKind(StrEnum):
    """What one record's input is; decides the default network and how the report shows it."""

    IMAGE = "image"
    FEATURES = "features"


@dataclass(frozen=True)
class Split:
    """Inputs (N, *shape) as uint8 or uint16 and labels (N,) as int64, row for row."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class RangeSpending:
    """A private estimate of feature ranges: one Gaussian mechanism that the ledger must count."""

    noise_multiplier: float


@dataclass(frozen=True)
class Scaling:
    """How raw features became levels: bounds per feature and where the bounds came from ('declared', 'test' or 'private')."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    source: str
    spending: RangeSpending | None = None


@dataclass(frozen=True)
class Dataset:
    """Records for training (private) and testing (declared public), with what the public may know about them."""

    name: str
    kind: InputKind
    train: Split
    test: Split
    classes: tuple[str, ...]
    levels: int
    feature_names: tuple[str, ...] = ()
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            self._check_split(f"{self.name}, {part} split", split)
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise DataError(
                "train and test inputs differ in shape",
                where=self.name,
                got=f"{self.train.inputs.shape[1:]} and {self.test.inputs.shape[1:]}",
                wanted="one shape for all records",
                fix="prepare both splits in the same way",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) for images, (features,) otherwise."""
        return tuple(int(size) for size in self.test.inputs.shape[1:])

    def public_description(self) -> dict[str, Any]:
        """What a released file may say: nothing here is computed from the training records."""
        scaling = None
        if self.scaling is not None:
            scaling = {"low": list(self.scaling.low), "high": list(self.scaling.high), "source": self.scaling.source}
        return {
            "name": self.name,
            "kind": str(self.kind),
            "shape": list(self.shape),
            "classes": list(self.classes),
            "levels": self.levels,
            "test_records": len(self.test),
            "feature_names": list(self.feature_names),
            "scaling": scaling,
        }

    def _check_split(self, where: str, split: Split) -> None:
        if split.inputs.dtype not in (np.uint8, np.uint16):
            raise DataError("inputs are not stored as levels", where=where, got=split.inputs.dtype, wanted="uint8 or uint16")
        if len(split) == 0:
            raise DataError("there are no records", where=where, got=0, wanted="at least one record of each class")
        if split.inputs.shape[0] != len(split):
            raise DataError(
                "the number of inputs and labels differ",
                where=where,
                got=f"{split.inputs.shape[0]} inputs, {len(split)} labels",
                wanted="one label for each input",
                fix="check that the two files belong together",
            )
        if int(split.inputs.max(initial=0)) > self.levels:
            raise DataError(
                "an input lies above the largest level",
                where=where,
                got=int(split.inputs.max()),
                wanted=f"0..{self.levels}",
            )
        outside = (split.labels < 0) | (split.labels >= len(self.classes))
        if outside.any():
            raise DataError(
                "a label does not fit the classes",
                where=f"{where}, record {int(np.flatnonzero(outside)[0])}",
                got=int(split.labels[outside][0]),
                wanted=f"0..{len(self.classes) - 1} ({len(self.classes)} classes)",
                fix="correct the label, or declare the classes",
            )
        counts = np.bincount(split.labels, minlength=len(self.classes))
        if (counts == 0).any():
            raise DataError(
                "a class has no record",
                where=where,
                got=f"no record of class {self.classes[int(np.argmin(counts))]!r}",
                wanted="at least one record of every class",
                fix="add records of that class or leave the class out",
            )
