"""The Laplace mechanism: pure epsilon at delta 0, and its exact profile for every other delta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.closed_forms import UPWARDS, rounded_up_sigma
from twinproof.privacy.mechanisms.float_search import least_float
from twinproof.privacy.mechanisms.mechanism import least_epsilon
from twinproof.privacy.mechanisms.targets import check_positive, check_profile_epsilon


def laplace_delta(epsilon: float, scale: float, sensitivity: float = 1.0) -> float:
    """The smallest delta at which Laplace noise of that scale on a query of that l1 sensitivity is (epsilon, delta)-private.

    Guarantees
        1 - exp((epsilon - sensitivity / scale) / 2), and 0 from epsilon = sensitivity / scale on; never below that, and 0 only
        where it is exactly 0. Proof for one output: the privacy loss is monotone, exceeds epsilon from the middle of the two
        centres plus epsilon scale / 2 on, and the two tails give the formula. Several outputs are no worse: moving them one
        after the other by v_1, ..., v_d costs at most the composed trade-off functions F(F^-1(1 - a) - v_k) of the log-concave
        density (Dong, Roth and Su 2022, group privacy), which compose to the one of a single output moved by |v_1| + ... +
        |v_d|. The exponent is found in exact arithmetic. Tests: numerical integration in one and two dimensions, dp-accounting.
    """
    gap = Fraction(sensitivity) / Fraction(scale) - Fraction(epsilon)
    if gap <= 0:
        return 0.0
    exponent = math.nextafter(float(min(gap, Fraction(2000))), math.inf)
    return min(1.0, -math.expm1(-exponent / 2) * UPWARDS)


def laplace_scale(epsilon: float, delta: float = 0.0, sensitivity: float = 1.0) -> float:
    """The smallest scale that is (epsilon, delta)-private at this l1 sensitivity: sensitivity / (epsilon - 2 ln(1 - delta)).

    Guarantees
        ``laplace_delta(epsilon, result, sensitivity) <= delta``; at delta 0 that is pure epsilon-privacy, and the result is the
        least float that is not below sensitivity / epsilon.
    """
    _check_delta(delta)
    check_positive("epsilon", epsilon)
    check_positive("sensitivity", sensitivity)
    start = rounded_up_sigma(sensitivity / (epsilon - 2 * math.log1p(-delta)))
    return least_float(lambda scale: laplace_delta(epsilon, scale, sensitivity) <= delta, start, "scale")


@dataclass(frozen=True)
class Laplace:
    """Laplace noise of deviation sqrt(2) ``scale`` on every output of a query whose l1 sensitivity is ``sensitivity``.

    Guarantees
        Those of ``Mechanism``; delta may be 0.
    """

    scale: float
    sensitivity: float = 1.0
    theorem: ClassVar[str] = "exact profile of Laplace noise (Dwork et al. 2006 at delta 0)"

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        check_positive("sensitivity", self.sensitivity)

    @classmethod
    def for_target(cls, epsilon: float, delta: float = 0.0, sensitivity: float = 1.0) -> Self:
        """The mechanism with ``laplace_scale``."""
        return cls(laplace_scale(epsilon, delta, sensitivity), sensitivity)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, rounded up."""
        return self.scale * math.sqrt(2) * UPWARDS

    def delta_at(self, epsilon: float) -> float:
        """The smallest delta at that epsilon (0 or above), rounded up."""
        check_profile_epsilon(epsilon)
        return laplace_delta(epsilon, self.scale, self.sensitivity)

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon at that delta (0 included), rounded up."""
        _check_delta(delta)
        return least_epsilon(self.delta_at, delta)


def _check_delta(delta: float) -> None:
    """Laplace noise, unlike Gaussian noise, keeps a promise with delta 0."""
    if not 0 <= delta < 1:
        raise ConfigError(
            "delta cannot be used", where="delta", got=delta, wanted="0 <= delta < 1", fix="use 0 or for example 1e-5"
        )
