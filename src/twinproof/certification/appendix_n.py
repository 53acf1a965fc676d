"""What StoBatch claims in Appendix N: a radius for noise that is psi times larger than the noise that is drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinproof.certification.two_noise_bounds import Rates, composition_radius
from twinproof.guarantee import Status
from twinproof.layers.fixed_draws import PSI, FixedDraws
from twinproof.layers.noise_placement import TwoNoisesSplit

APPENDIX_N_STATUS = Status.REFUTED


def stated_over_drawn(two: TwoNoisesSplit) -> float:
    """How many times larger the noise that a network states is than the one it draws: psi beside fixed draws, else 1."""
    return PSI if isinstance(next(iter(two.hidden.after), None), FixedDraws) else 1.0


def appendix_n_radius(low: ArrayLike, high: ArrayLike, drawn: Rates, psi: float = PSI) -> NDArray[np.float64]:
    """The published size: Corollary 1 for the scales as stated, psi times those ``drawn`` (whose rates these are).

    Status: refuted (``APPENDIX_N_STATUS``); to compare with, never to certify with. Only noise that is drawn anew at inference
    makes an answer random: the draws that are kept are part of the model. The claim is psi times ``composition_radius``, which
    is sound. Under one noise of scale 1, pA = 0.9 and pB = 0.1 claim 1.0986 and the truth is 1.6094; drawn with psi = 2 the
    claim is the same, and the answer changes at 0.8047. Of two noises in one pass the claim is true up to psi = 2, for another
    reason (``PublishedComposition``), and false at psi = 10.
    """
    return np.asarray(psi * composition_radius(low, high, drawn), dtype=np.float64)
