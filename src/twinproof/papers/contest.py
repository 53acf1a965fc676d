"""The methods of a figure and which is held against which: gains, and the papers' two-tailed t-tests of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from twinproof.papers import gather
from twinproof.papers.cell_store import Measured
from twinproof.papers.methods import METHODS
from twinproof.papers.statistics import TTest, paired_test, welch_test

Sampled = Sequence[Sequence[float]]
"""For each setting (attack, size, budget) one number for each repetition."""


@dataclass(frozen=True)
class Contest:
    """``lines`` are drawn, in this order, which is that of making them: long trainings first, so that none is left for the end.

    Of each of ``pairs`` the first is held against the second.
    """

    lines: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]

    @property
    def firsts(self) -> tuple[str, ...]:
        """The methods that the paper speaks for."""
        return tuple(dict.fromkeys(first for first, _ in self.pairs))

    def colour(self, method: str) -> int:
        """Its place in the palette and among the marks."""
        return self.lines.index(method)

    def gains(self, sampled: Callable[[str], Sampled]) -> dict[str, list[float]]:
        """First minus second, for each repetition, by the key of a published gain; a mean over all settings."""
        return {
            gain_key(first, second): differences(averages(sampled(first)), averages(sampled(second)))
            for first, second in self.pairs
        }

    def tests(self, sampled: Callable[[str], Sampled], words: str) -> tuple[TTest, ...]:
        """For each pair Welch's test over repetitions, then the paired one over settings; ``words`` name the settings."""
        found: list[TTest] = []
        for first, second in self.pairs:
            names = tuple(f"{METHODS[method].label}, {words}" for method in (first, second))
            left, right = sampled(first), sampled(second)
            found.append(welch_test(names[0], names[1], averages(left), averages(right)))
            found.append(paired_test(names[0], names[1], _means(left), _means(right)))
        return tuple(found)


_BASELINES = ("securesgd", "securesgd-agm", "dpsgd")
SECURESGD = Contest(
    (*_BASELINES, "adlm", "adlm-published"),
    tuple(("securesgd", other) for other in ("securesgd-agm", "dpsgd", "adlm", "adlm-published")),
)
"""Figures 4 and 5 of Phan et al. 2019; the paper's own Figure 5 has no AdLM."""
STOBATCH = Contest(
    ("stobatch", "stobatch-published", *_BASELINES, "adlm", "adlm-published"),
    (
        *(("stobatch", other) for other in (*_BASELINES, "adlm")),
        *(("stobatch-published", other) for other in (*_BASELINES, "adlm-published")),
    ),
)
"""Figures 2 and 4 of Phan et al. 2020: sound against sound, and as published against as published where there is such."""


def gain_key(first: str, second: str) -> str:
    """The key of a published gain."""
    return f"{first} over {second}"


def sampled_under(
    done: Sequence[Measured], method: str, readings: Sequence[gather.Reading], budgets: Sequence[float | None]
) -> list[tuple[float, ...]]:
    """What was measured of a method, for each budget and reading."""
    return [gather.values(done, method, read, epsilon) for epsilon in budgets for read in readings]


def averages(sampled: Sampled) -> list[float]:
    """For each repetition, the mean over all settings: one number that no other repetition shares."""
    return [fmean(found) for found in zip(*sampled, strict=True)]


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Repetition by repetition."""
    return [one - other for one, other in zip(left, right, strict=True)]


def _means(sampled: Sampled) -> list[float]:
    return [fmean(found) for found in sampled]
