"""What becomes of a cell: it is measured, or it could not be made."""

from __future__ import annotations

from dataclasses import dataclass

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured


@dataclass(frozen=True)
class Failure:
    """A cell that could not be made, and why. Words only: an exception would keep the memory of its model."""

    cell: Cell
    why: str


Outcome = Measured | Failure
