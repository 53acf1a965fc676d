"""Tables 3 and 4: clean accuracy of DP-Gaussian at sigma 0.25 against one setting of its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinproof.papers.catalogue.dpcert import DPCERT
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.dpcert.methods import FASHION_MNIST, GROUNDS, MNIST, SIGMAS, Ground, cells_of, grounds_of
from twinproof.papers.dpcert.readings import PUBLISHED_RADIUS, Model, accuracy, certified_at, sources_of, values
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNING_RATES: Mapping[str, tuple[float, ...]] = {MNIST.data: (0.25, 0.5, 1.0), FASHION_MNIST.data: (2.0, 4.0, 8.0)}
CLIPPING_NORMS: Mapping[str, tuple[float, ...]] = dict.fromkeys((MNIST.data, FASHION_MNIST.data), (0.01, 0.05, 0.1, 0.2, 0.5))
_METHOD, _SIGMA = "dp-gaussian", SIGMAS[0]


@dataclass(frozen=True)
class Sensitivity:
    """One of the two tables: ``setting`` of the training, its name in ``words``, and its values by data set.

    In a quick look the values of the first data set are tried.
    """

    setting: str
    words: str
    tried: Mapping[str, tuple[float, ...]] = field(hash=False)
    grounds: tuple[Ground, ...] = GROUNDS

    def cells(self, effort: Effort) -> list[Cell]:
        """The authors' own value is a cell of Table 2."""
        first = next(iter(self.tried.values()))
        return [
            cell
            for ground in grounds_of(self.grounds, effort)
            for value in self.tried.get(ground.data, first)
            for cell in cells_of(_METHOD, ground, effort, sigma=_SIGMA, changes={self.setting: value})
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """Accuracy at each value; certified accuracy beside it, which the paper does not give."""
        ours = {
            self._key(source, value): values(done, self._model(source, value), accuracy)
            for source in sources_of(done)
            for value in self._values(done, source)
        }
        return Findings(
            tuple(self._panel(done, source) for source in sources_of(done)),
            ours=ours,
            notes=("the authors compared these settings on the test set, and so does this table: it chooses nothing",),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """A panel for each data set."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=len(findings.panels), names_above=True)

    def _key(self, source: str, value: float) -> str:
        return f"{source} {self.words} {value:g}"

    def _model(self, source: str, value: float) -> Model:
        return Model(_METHOD, source, _SIGMA, {self.setting: value})

    def _values(self, done: Sequence[Measured], source: str) -> tuple[float, ...]:
        found = {one.cell.training[self.setting] for one in done if one.cell.training["data"]["source"] == source}
        return tuple(sorted(float(value) for value in found))

    def _panel(self, done: Sequence[Measured], source: str) -> Panel:
        places = self._values(done, source)
        readings = (("accuracy", accuracy), ("certified at 0.25", certified_at(_SIGMA, PUBLISHED_RADIUS)))
        lines = tuple(
            Line(label, "plain", colour, places, tuple(values(done, self._model(source, at), read) for at in places))
            for colour, (label, read) in enumerate(readings)
        )
        title = f"{source}: DP-Gaussian, sigma {_SIGMA:g}"
        return Panel(title, self.words, lines, logarithmic=True, fitted=True, printed=self._printed(source, places))

    def _printed(self, source: str, places: tuple[float, ...]) -> tuple[Line, ...]:
        """The paper's accuracies, in the colour of ours."""
        published = {number.key: number.value for experiment in DPCERT for number in experiment.published}
        found = {place: published[key] for place in places if (key := self._key(source, place)) in published}
        line = Line("accuracy, as published", "printed", 0, tuple(found), tuple((value,) for value in found.values()))
        return (line,) if found else ()
