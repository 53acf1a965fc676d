"""HGM's bound (Phan et al., IJCAI 2019, Eq. 10 with Theorem 3 in place of the misprint), for every epsilon."""

from __future__ import annotations

import math

import numpy as np

from twinproof.certification.bounds.bound import Floats
from twinproof.certification.bounds.equation4 import largest_complement_epsilon, largest_epsilon
from twinproof.certification.bounds.output_privacy import OutputPrivacyBound
from twinproof.privacy.mechanisms.extended_gaussian import extended_gaussian_sigma


class HGM(OutputPrivacyBound):
    """Eq. 4 with the Extended Gaussian Mechanism; whitening turns the heterogeneous one into it."""

    name = "hgm"
    theorem = "Phan et al. 2019, Eq. 4 and Theorem 3 (in the whitened layer: Theorem 2)"

    def sigma(self, epsilon: float, delta: float) -> float:
        """The deviation of Theorem 2."""
        return extended_gaussian_sigma(epsilon, delta)

    def height(self, epsilon: Floats, delta: Floats) -> Floats:
        """One over Theorem 2's formula, for the deltas that are searched (below 1/2)."""
        s = np.log(math.sqrt(2 / math.pi) / delta)
        return np.asarray(math.sqrt(2) * epsilon / (np.sqrt(s) + np.sqrt(s + epsilon)), dtype=np.float64)


class HGMComplement(HGM):
    """The better of ``HGM`` and the same mechanism under the condition on the complement: free, and never smaller."""

    name = "hgm-complement"
    theorem = "Phan et al. 2019, Theorem 3, with Eq. 4 or its form for the complement, whichever reaches farther"
    conditions = (largest_epsilon, largest_complement_epsilon)
