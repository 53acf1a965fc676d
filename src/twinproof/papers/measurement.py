"""How a trained model is measured: settings that name the cell, and the numbers that follow from the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from twinproof.data.record import Dataset
from twinproof.runs.run import Run

Numbers = dict[str, Any]
"""What was measured, as plain JSON values; docs/papers.md describes each kind."""


class Measurement(Protocol):
    """One kind of measurement with its settings; a frozen dataclass.

    Guarantees
        An implementation's ``numbers`` depends on the run, the data, these settings and fresh randomness, and on nothing else,
        and holds ``clean``. Killed at any moment and called again on the same run, it ends as if it had never been killed.
    """

    @property
    def after(self) -> Basis | None:
        """The measurement whose run this one goes on with, and which is made first; None to train a run of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Every setting that the numbers depend on, as plain JSON values: it becomes a part of the cell's name."""

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Measures ``run``."""

    def words(self) -> str:
        """What a caption says of it."""


class Basis(Measurement, Protocol):
    """A measurement that others can come after: it leaves more in its run than the weights, and knows what."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the run at ``folder`` is finished and holds all that this measurement leaves there, of one model."""
