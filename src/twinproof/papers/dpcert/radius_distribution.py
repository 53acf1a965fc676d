"""Figure 15: how certified radii are distributed over the test images, MNIST, sigma 0.5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import estimate_of, estimate_text
from twinproof.papers.dpcert.methods import METHODS, MNIST, TABLE_2, Ground, cells_of, grounds_of
from twinproof.papers.dpcert.readings import Model, Reading, certified_at, sources_of, values
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel, Table
from twinproof.papers.smoothing import radii_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS_PER_BIN = 2  # of ``radii_of``: bins of 0.1
_TOLD = (0.5, 1.0, 1.5)  # radii that the table tells of


@dataclass(frozen=True)
class RadiusDistribution:
    """The methods of the figure at its one sigma; a function of the cells of Table 2."""

    ground: Ground = MNIST
    methods: tuple[str, ...] = ("regular", "dpsgd", "psac", "dp-gaussian")
    sigma: float = 0.5

    def cells(self, effort: Effort) -> list[Cell]:
        """Those of Table 2."""
        (ground,) = grounds_of((self.ground,), effort)
        return [cell for method in self.methods for cell in cells_of(method, ground, effort, sigma=self.sigma)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """The share of test images in each bin, and the share without a right answer before the first."""
        (source,) = sources_of(done)
        readings = binned(self.sigma)

        def line(place: int, method: str) -> Line:
            samples = tuple(values(done, Model(method, source, self.sigma), read) for read in readings.values())
            return Line(METHODS[method].label, "plain", place, tuple(readings), samples)

        lines = tuple(line(place, method) for place, method in enumerate(self.methods))
        axis = "radius, bins of 0.1 (before 0: not right)"
        return Findings(
            (Panel(f"{source}, sigma {self.sigma:g}", axis, lines, fitted=True),),
            notes=("an image without an answer, or with a wrong one, counts in the place before 0, whatever its radius",),
            tables=(self._numbers(done, source),),
            cells_in=TABLE_2,
        )

    def _numbers(self, done: Sequence[Measured], source: str) -> Table:
        """The share that is not right, and that with a radius of at least some."""
        wrong = next(iter(binned(self.sigma).values()))
        readings = (wrong, *(certified_at(self.sigma, radius) for radius in _TOLD))
        rows = tuple(
            (METHODS[method].label, *(estimate_text(estimate_of(values(done, model, read))) for read in readings))
            for method in self.methods
            for model in (Model(method, source, self.sigma),)
        )
        header = ("method", "not right, %", *(f"radius of at least {radius:g}, %" for radius in _TOLD))
        return Table(f"{source}, sigma {self.sigma:g}", header, rows)

    def figure(self, findings: Findings, caption: str) -> Figure:
        """One panel."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=1, names_above=True)


def binned(sigma: float) -> dict[float, Reading]:
    """By the lower end of its bin, the share of images in it; the first stands for those without a right answer.

    Guarantees
        Each image is in one bin: the shares add up to 100.
    """
    radii = radii_of(sigma)
    edges = radii[::_STEPS_PER_BIN]
    shares: dict[float, Reading] = {-edges[1]: lambda one: 100 - certified_at(sigma, 0.0)(one)}
    for low, high in zip(edges, (*edges[1:], None), strict=True):
        shares[low] = _between(sigma, low, high)
    return shares


def _between(sigma: float, low: float, high: float | None) -> Reading:
    at_least = certified_at(sigma, low)
    if high is None:
        return at_least
    beyond = certified_at(sigma, high)
    return lambda one: at_least(one) - beyond(one)
