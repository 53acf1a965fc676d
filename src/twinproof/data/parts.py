"""What a reader returns: records as they lie in the files, before classes, splits and levels are settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.data.record import InputKind
from twinproof.errors import DataError


@dataclass(frozen=True)
class Records:
    """Inputs and raw labels (integers or text), row for row; ``rows`` are their positions in the file, for error messages."""

    inputs: NDArray[Any]
    labels: NDArray[Any]
    where: str
    rows: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(
                "the number of inputs and labels differ",
                where=self.where,
                got=f"{len(self.inputs)} inputs, {len(self.labels)} labels",
                wanted="one label for each input",
                fix="check that the inputs and labels belong together",
            )
        if 0 in self.inputs.shape[1:]:
            raise DataError(
                "the inputs are empty", where=self.where, got=f"shape {self.inputs.shape}", wanted="pixels or features"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, index: int) -> int:
        """Position in the file of the record that is now at ``index``."""
        return index if self.rows is None else int(self.rows[index])

    def take(self, chosen: NDArray[np.bool_]) -> Records:
        """The chosen records, in their order."""
        rows = np.flatnonzero(chosen) if self.rows is None else self.rows[chosen]
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen], rows=rows)


@dataclass(frozen=True)
class Parts:
    """One data set as read. ``levels`` is None for raw features, which still have to be scaled between bounds.

    ``public_fraction`` is the share that becomes the test part where there is none and nobody decides otherwise: set only for
    records that are public anyway. ``public`` says that all of them are, as those of a known set.
    """

    name: str
    kind: InputKind
    train: Records
    test: Records | None
    levels: int | None
    classes: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[float, float]] | None = None
    public_fraction: float | None = None
    public: bool = False
