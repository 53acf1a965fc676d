"""Figures 4 and 5 of Phan et al. 2019: accuracy of private models under attacks, against the privacy budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from twinproof.papers import gather
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel
from twinproof.papers.methods import METHODS, Ground, cells_of
from twinproof.papers.statistics import TTest, paired_test, welch_test
from twinproof.papers.words import ATTACK_NAMES, EPSILON_AXIS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OURS = "securesgd"
_BASELINES = ("securesgd-agm", "dpsgd")
_QUICK_EPSILONS = (1.0, 4.0)


@dataclass(frozen=True)
class ConventionalUnderAttack:
    """One of the two figures, at each of ``sizes``; the published gains are compared at ``caption_size`` (papers' scale)."""

    ground: Ground
    epsilons: tuple[float, ...]
    sizes: tuple[float, ...]
    caption_size: float

    def cells(self, effort: Effort) -> list[Cell]:
        """The three private methods at every budget."""
        budgets = _QUICK_EPSILONS if effort.quick else self.epsilons
        return [
            cell
            for epsilon in budgets
            for method in (_OURS, *_BASELINES)
            for cell in cells_of(method, self.ground, effort, epsilon=epsilon)
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack and size, the paper's gains and their tests."""
        budgets = _budgets(done)
        ours = {
            f"{_OURS} over {other}": _differences(
                _averages(done, _OURS, self.caption_size), _averages(done, other, self.caption_size)
            )
            for other in _BASELINES
        }
        at = _mean_over_attacks(done, self.caption_size)
        first, last = (gather.values(done, _OURS, at, epsilon) for epsilon in (budgets[0], budgets[-1]))
        ours["securesgd rise"] = _differences(last, first)
        return Findings(
            panels=tuple(_panel(done, attack, size) for size in self.sizes for attack in gather.attacks_of(done)),
            tests=tuple(test for size in self.sizes for other in _BASELINES for test in _tests(done, other, size)),
            ours=ours,
            notes=(
                f"gains: mean over the attacks and budgets, at size {self.caption_size:g}, the one of the caption",
                f"rise: from epsilon {budgets[0]:g} to {budgets[-1]:g}",
                "methods with noise answer with the class that most of their draws vote for",
            ),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Lines with bands."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=4)


def _budgets(done: Sequence[Measured]) -> list[float]:
    return sorted({float(one.cell.training["epsilon"]) for one in done})


def _mean_over_attacks(done: Sequence[Measured], size: float) -> gather.Reading:
    return gather.mean_of([gather.conventional(attack, size) for attack in gather.attacks_of(done)])


def _averages(done: Sequence[Measured], method: str, size: float) -> list[float]:
    """For each repetition, the mean over all budgets and attacks: one number that no other repetition shares."""
    read = _mean_over_attacks(done, size)
    each = [gather.values(done, method, read, epsilon) for epsilon in _budgets(done)]
    return [fmean(found) for found in zip(*each, strict=True)]


def _differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(left, right, strict=True)]


def _tests(done: Sequence[Measured], other: str, size: float) -> tuple[TTest, TTest]:
    def settings(method: str) -> list[float]:
        return [
            fmean(gather.values(done, method, gather.conventional(attack, size), epsilon))
            for epsilon in _budgets(done)
            for attack in gather.attacks_of(done)
        ]

    names = (f"{_OURS}, size {size:g}", f"{other}, size {size:g}")
    welch = welch_test(*names, _averages(done, _OURS, size), _averages(done, other, size))
    return welch, paired_test(*names, settings(_OURS), settings(other))


def _panel(done: Sequence[Measured], attack: str, size: float) -> Panel:
    budgets = tuple(_budgets(done))
    lines = tuple(
        Line(
            METHODS[method].label,
            "plain",
            colour,
            budgets,
            tuple(gather.values(done, method, gather.conventional(attack, size), epsilon) for epsilon in budgets),
        )
        for colour, method in enumerate((_OURS, *_BASELINES))
    )
    return Panel(f"accuracy under {ATTACK_NAMES[attack]}, size {size:g}", EPSILON_AXIS, lines, logarithmic=True)
