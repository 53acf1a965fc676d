"""How votes or scores become a radius: the choices that a promise depends on, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from twinproof.certification.bounds.catalogue import bound_names
from twinproof.certification.bounds.confidence import RunnerUp
from twinproof.certification.bounds.mean_confidence import CONFIDENCE_NAMES, find_confidence
from twinproof.errors import ConfigError
from twinproof.extensions import where_to_get
from twinproof.privacy.sensitivity.bound import Norm


class Statistic(StrEnum):
    """What a draw of the network counts."""

    VOTES = "votes"  # 1 for the class with the largest output
    SCORES = "scores"  # the softmax of the outputs, floored to multiples of 2^-20


@dataclass(frozen=True)
class Method:
    """How radii are made, whatever the noise; the default is CERTIFY of Cohen et al. 2019.

    The ``norm`` of the radii, the ``bound`` on robustness, the ``statistic`` that is averaged, its ``confidence`` bound, and
    how the other classes are bounded (``runner_up``). Whether there is a bound for the law of the noise shows with the network.

    Guarantees
        Only combinations that have a proof can be made: Clopper-Pearson is for votes, as averages of scores are not binomial.
    """

    norm: str = Norm.L2
    bound: str = "tight"
    statistic: str = Statistic.VOTES
    confidence: str = "clopper-pearson"
    runner_up: str = RunnerUp.COMPLEMENT

    def __post_init__(self) -> None:
        for name, allowed in (
            ("norm", tuple(map(str, Norm))),
            ("bound", bound_names()),
            ("statistic", tuple(map(str, Statistic))),
            ("confidence", CONFIDENCE_NAMES),
            ("runner_up", tuple(map(str, RunnerUp))),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"there is no such {name.replace('_', '-')}",
                    where=name,
                    got=getattr(self, name),
                    wanted=f"one of: {', '.join(allowed)}",
                    fix=where_to_get(self.bound) or "" if name == "bound" else "",
                )
        if self.statistic == Statistic.SCORES and find_confidence(self.confidence).votes_only:
            others = ", ".join(name for name in CONFIDENCE_NAMES if not find_confidence(name).votes_only)
            raise ConfigError(
                f"{self.confidence} bounds are for votes: the mean of scores is not binomial",
                where="confidence",
                got=f"{self.confidence} with scores",
                wanted=f"one of: {others}",
                fix="empirical-bernstein is the better one where scores vary little",
            )

    @property
    def is_plain(self) -> bool:
        """Whether one number of votes is all the evidence, bounded by Clopper-Pearson: what looks and shared noise are for."""
        return (self.statistic, self.confidence, self.runner_up) == (
            Statistic.VOTES,
            "clopper-pearson",
            RunnerUp.COMPLEMENT,
        )


PLAIN = Method()
"""CERTIFY as Cohen et al. have it."""


def default_confidence(statistic: str) -> str:
    """The best confidence bound for what is averaged: the exact one for votes, empirical Bernstein for scores."""
    return "empirical-bernstein" if statistic == Statistic.SCORES else PLAIN.confidence
