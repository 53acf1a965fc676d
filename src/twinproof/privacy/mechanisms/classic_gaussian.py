"""The Gaussian mechanism of the textbooks (Dwork and Roth 2014, Theorem A.1): epsilon at most 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.closed_forms import rounded_up_sigma
from twinproof.privacy.mechanisms.gaussian import GaussianNoise
from twinproof.privacy.mechanisms.targets import check_target

LARGEST_EPSILON = 1.0


def classic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon, rounded up; refuses epsilon above 1.

    Guarantees
        (epsilon, delta)-private for 0 < epsilon <= 1 and 0 < delta < 1. Proof: with c = sigma epsilon / sensitivity the exact
        delta is at most Phi(-y), y = c - epsilon / (2 c). If y >= 0, then Phi(-y) <= exp(-y^2 / 2) / 2 <= exp(epsilon / 2)
        exp(-c^2 / 2) / 2 <= 0.83 exp(-c^2 / 2) < delta, as y^2 >= c^2 - epsilon. If y < 0, then c^2 < 1/2 and delta > 0.97,
        while delta < 1 keeps c > 0.66 and so Phi(-y) < 0.54. Tests: exact profile on 2,000 random targets, the reference table.
    """
    check_target(epsilon, delta, sensitivity)
    if epsilon > LARGEST_EPSILON:
        raise ConfigError(
            "the classic Gaussian mechanism is proven for epsilon up to 1 only",
            where="epsilon",
            got=epsilon,
            wanted="0 < epsilon <= 1",
            fix="use the analytic Gaussian mechanism: any epsilon, and less noise",
        )
    return rounded_up_sigma(sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon)


@dataclass(frozen=True)
class ClassicGaussian(GaussianNoise):
    """Gaussian noise by the textbook formula; for comparison, since the analytic calibration needs less."""

    theorem: ClassVar[str] = "Dwork and Roth 2014, Theorem A.1 (epsilon <= 1)"

    @classmethod
    def for_target(cls, epsilon: float, delta: float, sensitivity: float = 1.0) -> Self:
        """The mechanism with ``classic_gaussian_sigma``."""
        return cls(classic_gaussian_sigma(epsilon, delta, sensitivity), sensitivity)
