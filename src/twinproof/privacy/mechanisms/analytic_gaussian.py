"""The Gaussian mechanism calibrated by its exact privacy profile (Balle and Wang, ICML 2018): the least noise there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from twinproof.privacy.mechanisms.extended_gaussian import extended_gaussian_sigma
from twinproof.privacy.mechanisms.float_search import least_float
from twinproof.privacy.mechanisms.gaussian import GaussianNoise, gaussian_delta

__all__ = ["AnalyticGaussian", "analytic_gaussian_sigma", "gaussian_delta"]


def analytic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation that is (epsilon, delta)-private at this l2 sensitivity.

    Guarantees
        ``gaussian_delta(epsilon, result, sensitivity) <= delta``, and ``gaussian_delta`` is never below the exact profile. The
        profile is necessary and sufficient, so nothing smaller than the result is private, up to what ``gaussian_delta`` rounds
        up: 1e-8 of the result for epsilon >= 1e-4 and delta >= 1e-14. Tests: the reference table, exact arithmetic, a sigma
        smaller by 0.1 % fails.
    """
    start = extended_gaussian_sigma(epsilon, delta, sensitivity)
    return least_float(lambda sigma: gaussian_delta(epsilon, sigma, sensitivity) <= delta, start, "sigma")


@dataclass(frozen=True)
class AnalyticGaussian(GaussianNoise):
    """Gaussian noise of the least sigma that keeps the target."""

    theorem: ClassVar[str] = "Balle and Wang 2018, Theorem 8 (necessary and sufficient)"

    @classmethod
    def for_target(cls, epsilon: float, delta: float, sensitivity: float = 1.0) -> Self:
        """The mechanism with ``analytic_gaussian_sigma``."""
        return cls(analytic_gaussian_sigma(epsilon, delta, sensitivity), sensitivity)
