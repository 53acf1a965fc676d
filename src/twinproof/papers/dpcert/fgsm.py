"""Figure 16: accuracy of the networks without noise under one linf step, against its size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import estimate_of, estimate_text
from twinproof.papers.dpcert.certified_curves import Curve, table_curves
from twinproof.papers.dpcert.methods import GROUNDS, METHODS, SIGMAS, TABLE_2, Ground, grounds_of, long_first, models_of
from twinproof.papers.dpcert.readings import Model, fgsm_at, sources_of, values
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel, Table
from twinproof.papers.smoothing import FGSM_SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Fgsm:
    """A panel for each data set and sigma; methods without noise in training are the same line in all of a row."""

    grounds: tuple[Ground, ...] = GROUNDS
    curves: tuple[Curve, ...] = table_curves()

    def cells(self, effort: Effort) -> list[Cell]:
        """Those of Table 2."""
        grounds = grounds_of(self.grounds, effort)
        return long_first(
            cell for ground in grounds for curve in self.curves for cell in models_of(curve.method, ground, effort)
        )

    def findings(self, done: Sequence[Measured]) -> Findings:
        """Shares of all test images, not only of those that are right without an attack."""
        panels = (self._panel(done, source, sigma) for source in sources_of(done) for sigma in SIGMAS)
        return Findings(
            tuple(panels),
            notes=(
                "shares of all test images; the authors count only images that are right without an attack",
                "one step of one attack on the network without noise: an upper bound on robustness, no certificate",
            ),
            tables=(self._numbers(done),),
            cells_in=TABLE_2,
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """A row for each data set."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=len(SIGMAS), names_above=True)

    def _numbers(self, done: Sequence[Measured]) -> Table:
        """Accuracy at each size; what was trained without noise is one model for all sigmas, and stands once."""
        rows = [
            (source, f"{sigma:g}" if METHODS[curve.method].augmented else "-", curve.label, *self._at_sizes(done, model))
            for source in sources_of(done)
            for curve in self.curves
            for sigma in SIGMAS
            for model in (Model(curve.method, source, sigma),)
        ]
        header = ("data", "sigma", "method", *(f"linf {size:g}, %" for size in FGSM_SIZES))
        return Table("Accuracy under FGSM", header, tuple(dict.fromkeys(rows)))

    @staticmethod
    def _at_sizes(done: Sequence[Measured], model: Model) -> Iterator[str]:
        return (estimate_text(estimate_of(values(done, model, fgsm_at(size)))) for size in FGSM_SIZES)

    def _panel(self, done: Sequence[Measured], source: str, sigma: float) -> Panel:
        def line(place: int, curve: Curve) -> Line:
            model = Model(curve.method, source, sigma)
            samples = tuple(values(done, model, fgsm_at(size)) for size in FGSM_SIZES)
            return Line(curve.label, curve.kind, place, FGSM_SIZES, samples)

        lines = tuple(line(place, curve) for place, curve in enumerate(self.curves))
        return Panel(f"{source}, sigma {sigma:g}: FGSM", "linf size, inputs in [0, 1]", lines, logarithmic=True)
