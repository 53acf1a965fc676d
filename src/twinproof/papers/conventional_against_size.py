"""Figure 4 of Phan et al. 2020 (StoBatch): accuracy of private models under attacks, against the attacks' size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.papers import gather
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.contest import Contest, Sampled, differences, sampled_under
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel
from twinproof.papers.methods import METHODS, Ground, cells_of
from twinproof.papers.promises import check_promises
from twinproof.papers.words import ANSWERS, ATTACK_NAMES, REFUTED_LINES, SIZE_AXIS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUICK_EPSILON = 1.0


@dataclass(frozen=True)
class ConventionalAgainstSize:
    """All methods at one budget, each attacked at every size; its cells are among those of the figure against epsilon."""

    ground: Ground
    contest: Contest
    epsilon: float

    def cells(self, effort: Effort) -> list[Cell]:
        """Every method at the budget."""
        budget = _QUICK_EPSILON if effort.quick else self.epsilon
        return [cell for method in self.contest.lines for cell in cells_of(method, self.ground, effort, epsilon=budget)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack, the paper's gains over all sizes, the drops, and their tests."""
        check_promises(done)
        sizes = gather.sizes_of(done)

        def sampled(method: str) -> Sampled:
            return _sampled(done, method)

        drops: dict[str, Sequence[float]] = {
            f"{method} drop": differences(_at(done, method, sizes[0]), _at(done, method, sizes[-1]))
            for method in self.contest.lines
        }
        return Findings(
            panels=tuple(self._panel(done, attack) for attack in gather.attacks_of(done)),
            tests=self.contest.tests(sampled, "all sizes"),
            ours={**drops, **self.contest.gains(sampled)},
            notes=(
                f"epsilon {gather.budgets_of(done)[0]:g}; gains: mean over the attacks and sizes",
                f"drop: from size {sizes[0]:g} to {sizes[-1]:g}, mean over the attacks",
                ANSWERS,
                REFUTED_LINES,
            ),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Lines with bands."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=4, names_above=True)

    def _panel(self, done: Sequence[Measured], attack: str) -> Panel:
        (budget,), sizes = gather.budgets_of(done), gather.sizes_of(done)

        def line(method: str) -> Line:
            known = METHODS[method]
            samples = tuple(gather.values(done, method, gather.conventional(attack, size), budget) for size in sizes)
            return Line(known.label, known.kind, self.contest.colour(method), sizes, samples)

        title = f"accuracy under {ATTACK_NAMES[attack]}, epsilon {budget:g}"
        return Panel(title, SIZE_AXIS, tuple(line(method) for method in self.contest.lines))


def _sampled(done: Sequence[Measured], method: str) -> Sampled:
    readings = [gather.conventional(attack, size) for attack in gather.attacks_of(done) for size in gather.sizes_of(done)]
    return sampled_under(done, method, readings, gather.budgets_of(done))


def _at(done: Sequence[Measured], method: str, size: float) -> tuple[float, ...]:
    read = gather.mean_of([gather.conventional(attack, size) for attack in gather.attacks_of(done)])
    return gather.values(done, method, read, gather.budgets_of(done)[0])
