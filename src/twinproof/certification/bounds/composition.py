"""StoBatch's bound (Phan et al., ICML 2020, Theorem 5 and Corollary 1): robustness levels of several noises added up."""

from __future__ import annotations

from twinproof.certification.bounds.bound import Charge
from twinproof.certification.bounds.pixeldp import PixelDPLaplace


class Composition(PixelDPLaplace):
    """ln(low / high) / 2, divided by the *sum* of what each noise charges for a change: kappa phi / (kappa + phi).

    Sound, and at most half of what one of the noises gives alone: one pass is charged as if it were one for each noise. With
    one noise it is ``PixelDPLaplace``.
    """

    name = "composition"
    theorem = "Phan et al. 2020, Theorem 5 and Corollary 1 (delta = 0): epsilons of the mechanisms add up"
    charge = Charge.COMPOSED
