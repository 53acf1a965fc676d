"""What every runnable experiment is: the cells it needs, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Reproduction(Protocol):
    """A figure that can be made again."""

    def cells(self, effort: Effort) -> list[Cell]:
        """The models to train and measure; none where everything is computed."""

    def findings(self, done: Sequence[Measured]) -> Findings:
        """What the finished cells show; a function of them alone."""

    def figure(self, findings: Findings, caption: str) -> Figure:
        """The picture."""


@runtime_checkable
class Selectable(Protocol):
    """A table whose rows are methods, each of which can be made without the others."""

    def only(self, methods: tuple[str, ...]) -> Reproduction:
        """The table of these rows alone; ConfigError where it has no such row."""
