"""PixelDP's bounds (Lecuyer et al., IEEE S&P 2019): Eq. 4 with the textbook mechanisms."""

from __future__ import annotations

import numpy as np

from twinproof.certification.bounds.bound import Floats, RobustnessBound
from twinproof.certification.bounds.lowered_log import lowered_log, never_tiny
from twinproof.certification.bounds.output_privacy import OutputPrivacyBound
from twinproof.layers.noise import Law
from twinproof.privacy.mechanisms.classic_gaussian import LARGEST_EPSILON, classic_gaussian_sigma


class PixelDPGaussian(OutputPrivacyBound):
    """Eq. 4 with the classic Gaussian mechanism, whose theorem ends at epsilon 1; a larger epsilon* counts as 1."""

    name = "pixeldp"
    theorem = "Lecuyer et al. 2019, Proposition 1, with Dwork and Roth 2014, Theorem A.1 (epsilon <= 1)"

    def sigma(self, epsilon: float, delta: float) -> float:
        """The classic mechanism's deviation."""
        return classic_gaussian_sigma(min(epsilon, LARGEST_EPSILON), delta)

    def height(self, epsilon: Floats, delta: Floats) -> Floats:
        """One over the classic formula."""
        return np.asarray(np.minimum(epsilon, LARGEST_EPSILON) / np.sqrt(2 * np.log(1.25 / delta)), dtype=np.float64)


class PixelDPLaplace(RobustnessBound):
    """ln(low / high) / 2: Eq. 4 with the Laplace mechanism, which is (epsilon, 0)-private under shifts of l1 length epsilon.

    Guarantees
        Those of ``RobustnessBound``, with what floats err subtracted; never above ``TightLaplace``, whose first term it is.
    """

    name = "pixeldp"
    law = Law.LAPLACE
    theorem = "Lecuyer et al. 2019, Proposition 1, with the Laplace mechanism (delta = 0)"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return lowered_log(low / never_tiny(high)) / 2
