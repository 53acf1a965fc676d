"""Bounds that read robustness off a mechanism's privacy: PixelDP's idea, for any calibration of Gaussian noise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from twinproof.certification.bounds.bound import Floats, RobustnessBound
from twinproof.certification.bounds.delta_search import best_delta
from twinproof.certification.bounds.equation4 import largest_epsilon
from twinproof.layers.noise import Law
from twinproof.privacy.accounting import check_delta

Condition = Callable[[Floats, Floats, Floats], Floats]
# 1 / sigma takes one rounding more than the closed form of sigma was rounded up for.
_DOWNWARDS = 1 - 2.0**-51


class OutputPrivacyBound(RobustnessBound):
    """1 / g(epsilon*(delta), delta), g being the noise that a calibration asks for at sensitivity 1.

    ``delta`` fixes the free parameter, for comparison with what papers print; without it the best one is searched for.

    Guarantees
        Those of ``RobustnessBound``, if ``sigma`` is an (epsilon, delta)-private deviation at sensitivity 1. Proof: noise of
        deviation 1 under shifts of length m is noise of deviation 1 / m at sensitivity 1, which is (epsilon, delta)-private
        where 1 / m >= g(epsilon, delta). A condition (``equation4``) says up to which epsilon that keeps the top class on top:
        epsilon*(delta). As g falls in epsilon, m = 1 / g(epsilon*(delta), delta) is the most that this delta gives. Each
        delta alone proves its own m, so that whatever the search finds is sound. epsilon* is rounded down, g up.
    """

    law: ClassVar[Law] = Law.GAUSSIAN
    conditions: ClassVar[tuple[Condition, ...]] = (largest_epsilon,)

    def __init__(self, *, delta: float | None = None) -> None:
        if delta is not None:
            check_delta(delta)
        self.delta = delta

    @abstractmethod
    def sigma(self, epsilon: float, delta: float) -> float:
        """A private deviation at sensitivity 1 and an epsilon above 0, rounded up: the closed form that is proven."""

    @abstractmethod
    def height(self, epsilon: Floats, delta: Floats) -> Floats:
        """1 / sigma for many pairs at once, to guide the search only; 0 where epsilon is 0."""

    def _reach(self, low: Floats, high: Floats) -> Floats:
        reached = [self._reach_by(condition, low, high) for condition in self.conditions]
        return np.asarray(np.max(reached, axis=0), dtype=np.float64)

    def _reach_by(self, condition: Condition, low: Floats, high: Floats) -> Floats:
        def heights(delta: Floats) -> Floats:
            return self.height(condition(low, high, delta), delta)

        delta = best_delta(heights, (low - high) / 2) if self.delta is None else np.full_like(low, self.delta)
        epsilon = condition(low, high, delta)
        reached = [self._inverse(float(e), float(d)) if e > 0 else 0.0 for e, d in zip(epsilon, delta, strict=True)]
        return np.asarray(reached, dtype=np.float64)

    def _inverse(self, epsilon: float, delta: float) -> float:
        """1 / sigma, rounded down."""
        return _DOWNWARDS / self.sigma(epsilon, delta)
