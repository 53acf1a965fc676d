"""The Extended Gaussian Mechanism (Phan et al., IJCAI 2019, Theorem 2): a closed form for every epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from twinproof.privacy.mechanisms.closed_forms import rounded_up_sigma
from twinproof.privacy.mechanisms.gaussian import GaussianNoise
from twinproof.privacy.mechanisms.targets import check_target


def extended_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The sigma of Theorem 2, rounded up; of the proof's Condition 1 where the theorem's formula has no value.

    With s = ln(sqrt(2/pi) / delta) it is sensitivity (sqrt(s) + sqrt(s + epsilon)) / (sqrt(2) epsilon). One print of the
    theorem has sqrt(2)/pi instead of sqrt(2/pi); the proof derives the latter, and the former is not private.
    For delta > sqrt(2/pi) = 0.798 s is negative, and Condition 1 gives sensitivity (1 + sqrt(1 + 2
    epsilon)) / (2 epsilon).

    Guarantees
        (epsilon, delta)-private for all epsilon > 0 and 0 < delta < 1. Proof: both formulas solve epsilon sigma - 1 / (2
        sigma) = t (sensitivity 1), with t = sqrt(2 s) or t = 1, so that the exact delta is at most Phi(-t). In the first case
        Phi(-t) <= exp(-s) / 2 = sqrt(pi/8) delta < delta; in the second Phi(-1) = 0.16 < 0.798 < delta. Condition 1 is not
        needed elsewhere, though the paper's proof asks for it from delta = 0.48 on. Tests: exact profile on 2,000 random
        targets and at large delta, the reference table, the misprint caught.
    """
    check_target(epsilon, delta, sensitivity)
    s = math.log(math.sqrt(2 / math.pi) / delta)
    if s < 0:
        return rounded_up_sigma(sensitivity * (1 + math.sqrt(1 + 2 * epsilon)) / (2 * epsilon))
    return rounded_up_sigma(sensitivity * (math.sqrt(s) + math.sqrt(s + epsilon)) / math.sqrt(2) / epsilon)


@dataclass(frozen=True)
class ExtendedGaussian(GaussianNoise):
    """Gaussian noise by the closed form of Theorem 2; for comparison, since the analytic calibration needs less."""

    theorem: ClassVar[str] = "Phan et al. 2019, Theorem 2 (Condition 1 for delta > 0.798)"

    @classmethod
    def for_target(cls, epsilon: float, delta: float, sensitivity: float = 1.0) -> Self:
        """The mechanism with ``extended_gaussian_sigma``."""
        return cls(extended_gaussian_sigma(epsilon, delta, sensitivity), sensitivity)
