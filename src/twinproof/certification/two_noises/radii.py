"""From bounds on scores to sizes, for noise at two places: the single-pass bound and the published composition."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinproof.certification.bounds.composition import Composition
from twinproof.certification.bounds.tight import TightLaplace
from twinproof.certification.two_noises.rates import Rates


def single_pass_radius(low: ArrayLike, high: ArrayLike, found: Rates) -> NDArray[np.float64]:
    """The size below which no change can change the answer, in the norm of the rates; elementwise, rounded down.

    ``low`` is below the expected score of the top class, ``high`` above every other one's, for draws of both noises in every
    pass.

    Guarantees
        Sound, by the proof in ``rates``: a change of size r keeps every score and its complement within e^(rate * r), which is
        all that ``TightLaplace`` asks of a shift of length rate * r. Never below ``composition_radius`` of the same numbers.
    """
    return _downwards(TightLaplace().reach(low, high), found.single_pass)


def composition_radius(low: ArrayLike, high: ArrayLike, found: Rates) -> NDArray[np.float64]:
    """The same by Corollary 1 as published, at the largest epsilon that Eq. 12 allows: kappa phi / (kappa + phi)."""
    return _downwards(Composition().reach(low, high), found.composed)


def _downwards(reach: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # a layer of zeros moves nothing: no change is too large
        exact = reach / rate
    return np.asarray(np.where((reach > 0) & np.isfinite(exact), np.nextafter(exact, 0.0), exact), dtype=np.float64)
