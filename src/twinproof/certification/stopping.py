"""Drawing votes look by look, and only for the inputs whose answer is still open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.certification.clopper_pearson import clopper_pearson_lower
from twinproof.certification.looks import Schedule
from twinproof.certification.votes import Counter
from twinproof.runs.certificates import Look

Whole = NDArray[np.int64]
# How sure one must be, at a look, that the target stays out of reach. It decides how many certificates are lost, not whether
# those that are made hold.
_GIVE_UP = 1e-3


@dataclass(frozen=True)
class StoppingRule:
    """At each look of ``schedule``, the number of votes that decides an input: ``enough`` or more, or fewer than ``hope``.

    Guarantees
        The thresholds depend on the settings alone, never on a vote. Whether a bound holds does not depend on them: all
        bounds of the schedule hold at once with probability 1 - alpha, and stopping without a certificate claims nothing.
    """

    schedule: Schedule
    enough: tuple[int, ...]
    hope: tuple[int, ...]

    @classmethod
    def without_target(cls, schedule: Schedule) -> StoppingRule:
        """Nothing is decided before the last look."""
        return cls(schedule, tuple(look.draws + 1 for look in schedule.looks), (0,) * len(schedule.looks))

    @classmethod
    def for_target(cls, schedule: Schedule, reaches: Callable[[int, Look], bool]) -> StoppingRule:
        """Decides whether the certified radius is at least a target; ``reaches(votes, look)`` says which votes prove it."""
        enough = tuple(_least(look, reaches) for look in schedule.looks)
        needed, n = enough[-1], schedule.last.draws

        def hopeful(votes: int, look: Look) -> bool:
            # The upper bound on the probability is one minus the lower bound on its complement.
            upper = 1.0 - float(clopper_pearson_lower(look.draws - votes, look.draws, _GIVE_UP))
            return votes + n - look.draws >= needed and upper >= needed / n

        return cls(schedule, enough, tuple(_least(look, hopeful) for look in schedule.looks))

    def stops(self, number: int, votes: Whole) -> NDArray[np.bool_]:
        """Which inputs are decided at look ``number``, counted from 0; all of them at the last."""
        if number == len(self.schedule.looks) - 1:
            return np.ones(len(votes), dtype=np.bool_)
        return (votes >= self.enough[number]) | (votes < self.hope[number])


@dataclass(frozen=True)
class Estimate:
    """For each input the sums and sums of squares of all classes, and the number of the look, from 0, at which it stopped."""

    sums: Whole
    squares: Whole
    stopped: Whole


def estimate(counter: Counter, rule: StoppingRule, indices: list[int], stored: Tensor, top: Tensor) -> Estimate:
    """Counts votes until the rule has decided every input by those for ``top``.

    Guarantees
        The draws of an input are the first ones of those that the whole schedule would draw: stopping changes none of them.
    """
    counted: Whole | None = None
    stopped, undecided, seen = np.zeros(len(indices), dtype=np.int64), np.arange(len(indices)), 0
    for number, look in enumerate(rule.schedule.looks):
        chosen, rows = [indices[at] for at in undecided], torch.from_numpy(undecided).to(stored.device)
        made = counter.count("estimate", chosen, stored[rows], look.draws, after=seen).cpu().numpy()
        counted = np.zeros((len(indices), made.shape[1]), dtype=np.int64) if counted is None else counted
        counted[undecided] += made
        stopped[undecided] = number
        votes = counted[undecided, top[rows].cpu().numpy()]
        undecided, seen = undecided[~rule.stops(number, votes)], look.draws
        if not len(undecided):
            break
    sums, squares = counter.statistic.moments(torch.from_numpy(counted))
    return Estimate(sums.numpy(), squares.numpy(), stopped)


def _least(look: Look, holds: Callable[[int, Look], bool]) -> int:
    """The least number of votes for which ``holds`` is true, by bisection, as it stays true for more; draws + 1 if none is."""
    low, high = 0, look.draws + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle, look) else (middle + 1, high)
    return low
