"""What every confidence bound is: from draws to a lower bound on the top class and an upper bound on all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar, final

import numpy as np

from twinproof.certification.bounds.bound import Floats
from twinproof.certification.bounds.evidence import Evidence, Whole
from twinproof.errors import ConfigError


class RunnerUp(StrEnum):
    """How the classes besides the top one are bounded."""

    COMPLEMENT = "complement"  # by what the top class leaves: one bound, all of alpha
    UNION = "union"  # by bounds of their own as well: one lower, classes - 1 upper ones, alpha / classes each

    def level(self, alpha: float, classes: int) -> float:
        """The share of alpha of each single bound."""
        return alpha if self is RunnerUp.COMPLEMENT else alpha / classes


class Confidence(ABC):
    """One-sided confidence bounds on the mean of independent scores in [0, 1].

    Guarantees
        ``lower`` and ``upper`` each fail with probability at most ``level``, for every distribution of the scores and every
        number of draws. Arithmetic errs by far less than the 2**-36 that every tau holds for it (``after_tau``).
    """

    name: ClassVar[str]
    theorem: ClassVar[str]
    votes_only: ClassVar[bool] = False

    @abstractmethod
    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """Below the mean score, except with probability ``level``; in [0, 1]."""

    @abstractmethod
    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """Above the mean score, except with probability ``level``; in [0, 1]."""

    @final
    def bounds(self, evidence: Evidence, alpha: float, classes: int, runner_up: RunnerUp) -> tuple[Floats, Floats]:
        """(low, high): below the top class's mean score, above every other class's; before tau.

        Guarantees
            Both hold at once for an input, except with probability ``alpha``, where the top class was chosen without these
            draws. Complement: the scores of a draw add up to at most 1, so that high = 1 - low holds whenever low does. Union:
            one lower and ``classes`` - 1 upper bounds at alpha / classes each hold at once; that of the class with the largest
            upper bound is the maximum of them, so that choosing it on these draws costs nothing more.
        """
        _check(alpha, classes)
        if self.votes_only and evidence.resolution != 1:
            raise ConfigError(
                f"{self.name} bounds are for votes: the mean of scores is not binomial",
                where="confidence",
                got=f"scores in units of 1/{evidence.resolution}",
                wanted="votes",
                fix="use hoeffding or empirical-bernstein for scores",
            )
        draws, resolution = evidence.draws, evidence.resolution
        level = runner_up.level(alpha, classes)
        low = self.lower(evidence.total, evidence.squares, draws, resolution, level)
        if runner_up is RunnerUp.COMPLEMENT:
            return low, 1 - low
        return low, np.minimum(self.upper(evidence.other, evidence.other_squares, draws, resolution, level), 1 - low)

    @final
    def evidence(
        self, sums: Whole, squares: Whole, top: Whole, *, draws: int, resolution: int, alpha: float, runner_up: RunnerUp
    ) -> Evidence:
        """The evidence of (inputs, classes) sums for the chosen classes, with the strongest other class found by its bound."""
        inputs, classes = np.arange(len(sums)), sums.shape[1]
        own, own_squares = sums[inputs, top], squares[inputs, top]
        if runner_up is RunnerUp.COMPLEMENT:
            return Evidence(draws, resolution, own, own_squares, np.zeros_like(own), np.zeros_like(own))
        uppers = self.upper(sums, squares, draws, resolution, runner_up.level(alpha, classes))
        uppers[inputs, top] = -1.0
        other = uppers.argmax(axis=1)
        return Evidence(draws, resolution, own, own_squares, sums[inputs, other], squares[inputs, other])


def after_tau(low: Floats, high: Floats, tau: float) -> tuple[Floats, Floats]:
    """The bounds for noise that differs from the law by a total variation of at most ``tau``.

    Guarantees
        Each expected score moves by at most tau, so that low - tau and high + tau hold for the law itself. A ``high`` that is
        the complement of ``low`` stays exactly that: then p = low - tau gives the radius sigma Phi^-1(p) to the last bit.
    """
    lowered = low - tau
    return lowered, np.minimum(np.where(high == 1 - low, 1 - lowered, high + tau), 1.0)


def _check(alpha: float, classes: int) -> None:
    if not 0 < alpha < 1:
        raise ConfigError("alpha is no probability", where="alpha", got=alpha, wanted="0 < alpha < 1, e.g. 0.001")
    if classes < 2:
        raise ConfigError("the number of classes cannot be used", where="classes", got=classes, wanted="at least 2")
