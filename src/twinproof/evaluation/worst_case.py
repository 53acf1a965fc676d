"""Counting attacked inputs: one attack by itself, or for each input the worst of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twinproof.errors import DataError
from twinproof.evaluation.intervals import Interval, binomial_interval
from twinproof.runs.attacks import AttackLine


@dataclass(frozen=True)
class Outcome:
    """What one input, or the worst of its attacked versions, comes to.

    ``smoothed`` and ``network`` say who still names the true class, ``misled`` that the smoothed classifier named another one
    (so that an input with neither was met with silence), ``certified`` that it is certified at the attacked input itself.
    """

    smoothed: bool
    network: bool
    misled: bool
    certified: bool


@dataclass(frozen=True)
class Scores:
    """Shares of inputs with their intervals over test inputs; an abstention is never correct and is also counted apart."""

    smoothed: Interval
    network: Interval
    abstained: Interval
    certified: Interval
    inputs: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        shares = {name: getattr(self, name).as_dict() for name in ("smoothed", "network", "abstained", "certified")}
        return {**shares, "inputs": self.inputs}


def outcome_as_papers(line: AttackLine, reach: float) -> Outcome:
    """The papers' reading: the network at the input as it was crafted, certificates at the attacked input."""
    certified = line.correct and line.radius >= reach
    return Outcome(line.correct, line.network_unrounded == line.label, line.misled, certified)


def outcome_of_all(lines: Sequence[AttackLine], reach: float) -> Outcome:
    """The worst over several versions of one input: a classifier is right only if it is right at every one of them.

    The network may be met by inputs between stored levels too, so that both forms of each version count against it.
    """
    return Outcome(
        smoothed=all(line.correct for line in lines),
        network=all(line.label == line.network == line.network_unrounded for line in lines),
        misled=any(line.misled for line in lines),
        certified=all(line.correct and line.radius >= reach for line in lines),
    )


def worst_outcomes(entries: Sequence[Sequence[AttackLine]], reach: float) -> list[Outcome]:
    """``outcome_of_all`` for each input, over entries that hold the same inputs in the same order."""
    outcomes = []
    for versions in zip(*entries, strict=True):
        if len({line.index for line in versions}) != 1:
            raise DataError(
                "attacks do not hold the same inputs",
                got=sorted({line.index for line in versions}),
                wanted="one line for each input, in order",
            )
        outcomes.append(outcome_of_all(versions, reach))
    return outcomes


def scores(outcomes: Sequence[Outcome]) -> Scores:
    """Shares over inputs, each with its Clopper-Pearson interval."""
    total = len(outcomes)

    def share(count: int) -> Interval:
        return binomial_interval(count, total)

    return Scores(
        smoothed=share(sum(one.smoothed for one in outcomes)),
        network=share(sum(one.network for one in outcomes)),
        abstained=share(sum(not one.smoothed and not one.misled for one in outcomes)),
        certified=share(sum(one.certified for one in outcomes)),
        inputs=total,
    )
