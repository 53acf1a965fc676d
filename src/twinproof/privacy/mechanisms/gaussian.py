"""Gaussian noise and its exact privacy profile (Balle and Wang, ICML 2018, Theorem 8), rounded up."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

from twinproof.privacy.accounting import check_delta
from twinproof.privacy.mechanisms.mechanism import least_epsilon
from twinproof.privacy.mechanisms.targets import check_positive, check_profile_epsilon

# Relative error allowed to exp, erfcx and ndtr together; ten times what tests find against arithmetic of 50 digits.
_FUNCTIONS = 1e-14
# Unit roundoff of float64; half and shift take three roundings each, and their sum and difference one more.
_ROUNDOFF = 2.0**-53


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """The smallest delta at which N(0, sigma^2) noise on a query of that l2 sensitivity is (epsilon, delta)-private.

    Guarantees
        Never below the exact profile Phi(h - s) - e^epsilon Phi(-h - s), h = sensitivity / (2 sigma), s = epsilon sigma /
        sensitivity, and above it by little: 1e-7 of it for epsilon >= 1e-4 and delta >= 1e-14. The result lies in (0, 1].
        Proof: the densities satisfy e^epsilon phi(h + s) = phi(s - h), so that with Mills' ratio M the profile is G(n, f) =
        phi(n) (M(n) - M(f)) at n = s - h, f = s + h. Neither term overflows. G falls in n (its slope is phi(n) (n M(f) - 1),
        and n M(f) <= f M(f) < 1) and grows in f (M falls), so that n rounded down and f rounded up bound it from above; what
        the functions themselves err is added. Assumed: exp, erfcx and ndtr err by less than 1e-14 of their value.
        Tests: 50-digit arithmetic, numerical integration, dp-accounting.
    """
    from scipy.special import erfcx, ndtr

    half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    if not math.isfinite(half + shift):
        return 1.0
    slack = 8 * _ROUNDOFF * (half + shift) + sys.float_info.min  # the last term for what underflows
    near, far = shift - half - slack, shift + half + slack
    exponent = min(near * near / 2, 800.0)  # beyond it the density is 0 in floats
    weight, error = math.exp(-exponent) / 2, _FUNCTIONS + 4 * _ROUNDOFF * exponent
    lost = weight * float(erfcx(far / math.sqrt(2)))
    kept = weight * float(erfcx(near / math.sqrt(2))) if near >= 0 else float(ndtr(-near))
    return min(1.0, max(sys.float_info.min, kept - lost + error * (kept + lost)))


@dataclass(frozen=True)
class GaussianNoise:
    """N(0, sigma^2) on every coordinate of a query whose l2 sensitivity is ``sensitivity``; the profile does not ask why.

    Guarantees
        Those of ``Mechanism``, for every sigma: the profile is necessary and sufficient (Balle and Wang 2018, Theorem 8).
    """

    sigma: float
    sensitivity: float = 1.0
    theorem: ClassVar[str] = "exact profile of Gaussian noise (Balle and Wang 2018, Theorem 8)"

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)
        check_positive("sensitivity", self.sensitivity)

    def delta_at(self, epsilon: float) -> float:
        """The smallest delta at that epsilon (0 or above), rounded up; above 0 for every Gaussian noise."""
        check_profile_epsilon(epsilon)
        return gaussian_delta(epsilon, self.sigma, self.sensitivity)

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon at that delta, rounded up."""
        check_delta(delta)
        return least_epsilon(self.delta_at, delta)
