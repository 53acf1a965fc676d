"""Accuracy of private models under attacks, against the privacy budget or the size of the attacks.

Figures 4 and 5 of Phan et al. 2019, Figures 2 and 4 of Phan et al. 2020 (StoBatch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from twinproof_papers import gather
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.comparison import ADAPTIVE, ANSWERS, ATTACK_NAMES, EPSILON_AXIS, REFUTED_LINES, SIZE_AXIS, level_table
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, Line, Panel, TTest, paired_test, welch_test
from twinproof_papers.methods import METHODS, Setup, cells_of, check_promises


@dataclass(frozen=True)
class Lineup:
    """``lines`` are drawn, in this order, which is that of making them: long trainings first, so that none is left for the end.

    Of each of ``pairs`` the first is held against the second.
    """

    lines: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]

    def colour(self, method: str) -> int:
        """Its place in the palette and among the marks."""
        return self.lines.index(method)

    def look(self, method: str) -> gather.Look:
        """Label, kind and colour of its line."""
        return METHODS[method].label, METHODS[method].kind, self.colour(method)

    def gains(self, sampled: Callable[[str], gather.Samples]) -> dict[str, list[float]]:
        """First minus second, for each repetition, by the key of a published gain; a mean over all settings."""
        return {
            f"{first} over {second}": differences(averages(sampled(first)), averages(sampled(second)))
            for first, second in self.pairs
        }

    def tests(self, sampled: Callable[[str], gather.Samples], words: str) -> tuple[TTest, ...]:
        """For each pair Welch's test over repetitions, then the paired one over settings; ``words`` name the settings."""
        found: list[TTest] = []
        for first, second in self.pairs:
            names = tuple(f"{METHODS[method].label}, {words}" for method in (first, second))
            left, right = sampled(first), sampled(second)
            found.append(welch_test(names[0], names[1], averages(left), averages(right)))
            found.append(paired_test(names[0], names[1], [fmean(one) for one in left], [fmean(one) for one in right]))
        return tuple(found)


_BASELINES = ("securesgd", "securesgd-agm", "dpsgd")
SECURESGD = Lineup(
    (*_BASELINES, "adlm", "adlm-published"),
    tuple(("securesgd", other) for other in ("securesgd-agm", "dpsgd", "adlm", "adlm-published")),
)
"""Figures 4 and 5 of Phan et al. 2019; the paper's own Figure 5 has no AdLM."""
STOBATCH = Lineup(
    ("stobatch", "stobatch-published", *_BASELINES, "adlm", "adlm-published"),
    (
        *(("stobatch", other) for other in (*_BASELINES, "adlm")),
        *(("stobatch-published", other) for other in (*_BASELINES, "adlm-published")),
    ),
)
"""Figures 2 and 4 of Phan et al. 2020: sound against sound, and as published against as published where there is such."""


def averages(sampled: gather.Samples) -> list[float]:
    """For each repetition, the mean over all settings: one number that no other repetition shares."""
    return [fmean(found) for found in zip(*sampled, strict=True)]


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Repetition by repetition."""
    return [one - other for one, other in zip(left, right, strict=True)]


def accuracy_panel(done: Sequence[Measured], method: str, size: float, title: str) -> Panel:
    """Accuracy of one method against epsilon: without attack, under each attack of the papers, and with PGD that sees noise."""
    budgets = gather.budgets_of(done)
    readings = [
        ("no attack", gather.clean),
        *((ATTACK_NAMES[attack], gather.conventional(attack, size)) for attack in gather.attacks_of(done)),
        ("PGD in expectation", gather.adaptive(size)),
    ]
    lines = tuple(
        Line(label, "plain", colour, budgets, gather.samples(done, method, [read], budgets))
        for colour, (label, read) in enumerate(readings)
    )
    return Panel(title, f"{EPSILON_AXIS}; attacks of size {size:g}", lines, logarithmic=True)


_QUICK_EPSILONS = (1.0, 4.0)


@dataclass(frozen=True)
class ConventionalUnderAttack:
    """One of the figures, at each of ``sizes``; the published numbers are compared at ``caption_size`` (papers' scale)."""

    setup: Setup
    lineup: Lineup
    epsilons: tuple[float, ...]
    sizes: tuple[float, ...]
    caption_size: float

    def cells(self, options: Options) -> list[Cell]:
        """Every method at every budget, in the lineup's order: its longest trainings are begun first."""
        budgets = _QUICK_EPSILONS if options.quick else self.epsilons
        return [
            cell
            for method in self.lineup.lines
            for epsilon in budgets
            for cell in cells_of(method, self.setup, options, epsilon=epsilon)
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack and size, the paper's numbers and gains, their tests, and the accuracy behind them."""
        check_promises(done)
        budgets = gather.budgets_of(done)
        return Findings(
            panels=tuple(self._panel(done, attack, size) for size in self.sizes for attack in gather.attacks_of(done)),
            tests=tuple(
                test for size in self.sizes for test in self.lineup.tests(partial(_sampled, done, size), f"size {size:g}")
            ),
            ours=self._levels(done, budgets) | self.lineup.gains(partial(_sampled, done, self.caption_size)),
            sound=self._adaptive(done, budgets),
            notes=self._notes(done, budgets),
            beside=(level_table(done, self.lineup.lines, self.sizes),),
            columns=4,
            names="above",
        )

    def _levels(self, done: Sequence[Measured], budgets: Sequence[float]) -> dict[str, Sequence[float]]:
        """Accuracy of each method at each budget, mean over attacks, and how it rises over all budgets."""
        read = gather.mean_of([gather.conventional(attack, self.caption_size) for attack in gather.attacks_of(done)])
        levels: dict[str, Sequence[float]] = {}
        for method in self.lineup.lines:
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
            for method in self.lineup.lines
            for epsilon in budgets
        }

    def _notes(self, done: Sequence[Measured], budgets: Sequence[float]) -> tuple[str, ...]:
        refuted = any(METHODS[method].published for method in self.lineup.lines)
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
            Line(*self.lineup.look(method), budgets, gather.samples(done, method, [read], budgets))
            for method in self.lineup.lines
        )
        return Panel(f"accuracy under {ATTACK_NAMES[attack]}, size {size:g}", EPSILON_AXIS, lines, logarithmic=True)


def _sampled(done: Sequence[Measured], size: float, method: str) -> gather.Samples:
    readings = [gather.conventional(attack, size) for attack in gather.attacks_of(done)]
    return gather.samples(done, method, readings, gather.budgets_of(done))


_QUICK_EPSILON = 1.0


@dataclass(frozen=True)
class ConventionalAgainstSize:
    """All methods at one budget, each attacked at every size; its cells are among those of the figure against epsilon."""

    setup: Setup
    lineup: Lineup
    epsilon: float

    def cells(self, options: Options) -> list[Cell]:
        budget = _QUICK_EPSILON if options.quick else self.epsilon
        return [cell for method in self.lineup.lines for cell in cells_of(method, self.setup, options, epsilon=budget)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack, the paper's gains over all sizes, the drops, and their tests."""
        check_promises(done)
        sizes, sampled = gather.sizes_of(done), partial(_sampled_at_sizes, done)
        drops = {
            f"{method} drop": differences(_at(done, method, sizes[0]), _at(done, method, sizes[-1]))
            for method in self.lineup.lines
        }
        return Findings(
            panels=tuple(self._panel(done, attack) for attack in gather.attacks_of(done)),
            tests=self.lineup.tests(sampled, "all sizes"),
            ours=drops | self.lineup.gains(sampled),
            notes=(
                f"epsilon {gather.budgets_of(done)[0]:g}; gains: mean over the attacks and sizes",
                f"drop: from size {sizes[0]:g} to {sizes[-1]:g}, mean over the attacks",
                ANSWERS,
                REFUTED_LINES,
            ),
            columns=4,
            names="above",
        )

    def _panel(self, done: Sequence[Measured], attack: str) -> Panel:
        budgets, sizes = gather.budgets_of(done), gather.sizes_of(done)
        readings = [gather.conventional(attack, size) for size in sizes]
        lines = tuple(
            Line(*self.lineup.look(method), sizes, gather.samples(done, method, readings, budgets))
            for method in self.lineup.lines
        )
        return Panel(f"accuracy under {ATTACK_NAMES[attack]}, epsilon {budgets[0]:g}", SIZE_AXIS, lines)


def _sampled_at_sizes(done: Sequence[Measured], method: str) -> gather.Samples:
    readings = [gather.conventional(attack, size) for attack in gather.attacks_of(done) for size in gather.sizes_of(done)]
    return gather.samples(done, method, readings, gather.budgets_of(done))


def _at(done: Sequence[Measured], method: str, size: float) -> tuple[float, ...]:
    read = gather.mean_of([gather.conventional(attack, size) for attack in gather.attacks_of(done)])
    return gather.values(done, method, read, gather.budgets_of(done)[0])
