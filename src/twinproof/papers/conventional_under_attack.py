"""Accuracy of private models under attacks, against the privacy budget.

Figures 4 and 5 of Phan et al. 2019, and Figure 2 of Phan et al. 2020 (StoBatch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from twinproof.papers import gather
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.contest import Contest, Sampled, differences, sampled_under
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel
from twinproof.papers.level_table import level_table
from twinproof.papers.methods import METHODS, Ground, cells_of
from twinproof.papers.promises import check_promises
from twinproof.papers.words import ADAPTIVE, ANSWERS, ATTACK_NAMES, EPSILON_AXIS, REFUTED_LINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUICK_EPSILONS = (1.0, 4.0)


@dataclass(frozen=True)
class ConventionalUnderAttack:
    """One of the figures, at each of ``sizes``; the published numbers are compared at ``caption_size`` (papers' scale)."""

    ground: Ground
    contest: Contest
    epsilons: tuple[float, ...]
    sizes: tuple[float, ...]
    caption_size: float

    def cells(self, effort: Effort) -> list[Cell]:
        """Every method at every budget, in the contest's order: its longest trainings are begun first."""
        budgets = _QUICK_EPSILONS if effort.quick else self.epsilons
        return [
            cell
            for method in self.contest.lines
            for epsilon in budgets
            for cell in cells_of(method, self.ground, effort, epsilon=epsilon)
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack and size, the paper's numbers and gains, their tests, and the accuracy behind them."""
        check_promises(done)
        budgets = gather.budgets_of(done)
        return Findings(
            panels=tuple(self._panel(done, attack, size) for size in self.sizes for attack in gather.attacks_of(done)),
            tests=tuple(
                test for size in self.sizes for test in self.contest.tests(partial(_sampled, done, size), f"size {size:g}")
            ),
            ours={
                **self._levels(done, budgets),
                **self.contest.gains(partial(_sampled, done, self.caption_size)),
            },
            sound=self._adaptive(done, budgets),
            notes=self._notes(done, budgets),
            beside=(level_table(done, self.contest.lines, self.sizes),),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Lines with bands."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=4, names_above=len(self.contest.lines) > 3)

    def _levels(self, done: Sequence[Measured], budgets: Sequence[float]) -> dict[str, Sequence[float]]:
        """Accuracy of each method at each budget, mean over attacks, and how it rises over all budgets."""
        read = gather.mean_of([gather.conventional(attack, self.caption_size) for attack in gather.attacks_of(done)])
        levels: dict[str, Sequence[float]] = {}
        for method in self.contest.lines:
            at = {epsilon: gather.values(done, method, read, epsilon) for epsilon in budgets}
            levels |= {f"{method} conventional epsilon {epsilon:g}": found for epsilon, found in at.items()}
            levels[f"{method} rise"] = differences(at[budgets[-1]], at[budgets[0]])
        return levels

    def _adaptive(self, done: Sequence[Measured], budgets: Sequence[float]) -> dict[str, Sequence[float]]:
        """What is left under the attack that sees the noise, where it was tried at this size."""
        if not gather.has_adaptive(done, self.caption_size):
            return {}
        read = gather.adaptive(self.caption_size)
        return {
            f"{method} conventional epsilon {epsilon:g}": gather.values(done, method, read, epsilon)
            for method in self.contest.lines
            for epsilon in budgets
        }

    def _notes(self, done: Sequence[Measured], budgets: Sequence[float]) -> tuple[str, ...]:
        refuted = any(METHODS[method].published for method in self.contest.lines)
        return (
            f"gains: mean over the attacks and budgets, at size {self.caption_size:g}, the one of the caption",
            f"rise: from epsilon {budgets[0]:g} to {budgets[-1]:g}",
            ANSWERS,
            *((ADAPTIVE,) if gather.has_adaptive(done, self.caption_size) else ()),
            *((REFUTED_LINES,) if refuted else ()),
        )

    def _panel(self, done: Sequence[Measured], attack: str, size: float) -> Panel:
        budgets, read = gather.budgets_of(done), gather.conventional(attack, size)
        lines = tuple(
            Line(
                METHODS[method].label,
                METHODS[method].kind,
                self.contest.colour(method),
                budgets,
                tuple(gather.values(done, method, read, epsilon) for epsilon in budgets),
            )
            for method in self.contest.lines
        )
        return Panel(f"accuracy under {ATTACK_NAMES[attack]}, size {size:g}", EPSILON_AXIS, lines, logarithmic=True)


def _sampled(done: Sequence[Measured], size: float, method: str) -> Sampled:
    readings = [gather.conventional(attack, size) for attack in gather.attacks_of(done)]
    return sampled_under(done, method, readings, gather.budgets_of(done))
