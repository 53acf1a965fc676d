"""The tight bounds: the worst function with these scores is known, so that nothing larger is true."""

from __future__ import annotations

import numpy as np

from twinproof.certification.bounds.bound import Floats, RobustnessBound
from twinproof.certification.bounds.lowered_log import lowered_log, never_tiny
from twinproof.layers.noise import Law


class TightGaussian(RobustnessBound):
    """(Phi^-1(low) - Phi^-1(high)) / 2: for votes (Cohen et al. 2019) and for expected scores alike.

    Guarantees
        Those of ``RobustnessBound``. Proof: by the lemma of Neyman and Pearson, of all functions into [0, 1] with an expected
        score of p at x, a halfspace loses most when x moves by s; it keeps Phi(Phi^-1(p) - s). So the top class keeps at least
        Phi(Phi^-1(low) - s), every other one gets at most Phi(Phi^-1(high) + s), and the first is larger while s is below the
        bound. Two halfspaces reach it.
        Rounding: with high = 1 - low the result is Phi^-1(low) to the last bit, as ndtri is odd around 1/2. Nothing is
        subtracted for what ndtri errs (below 2**-48 of its value): callers lower ``low`` and raise ``high`` by tau, of which
        2**-36 is for arithmetic, and Phi^-1 rises at least 2.5 times as fast as p.
    """

    name = "tight"
    law = Law.GAUSSIAN
    theorem = "Cohen, Rosenfeld and Kolter 2019, Theorem 1 (Neyman-Pearson), in the whitened layer; tight"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        from scipy.special import ndtri

        return np.asarray((ndtri(low) - ndtri(high)) / 2, dtype=np.float64)


class TightLaplace(RobustnessBound):
    """max(ln(low / high) / 2, -ln(1 - low + high)), in l1.

    Guarantees
        Those of ``RobustnessBound``, with what floats err subtracted. Proof: a shift by s in l1 changes the noise's density by
        a factor of at most e^s, so that every score p and its complement 1 - p stay within that factor. From the scores: the
        top class keeps at least e^-s low, every other one gets at most e^s high. From the complement: the top class keeps at
        least 1 - e^s (1 - low). Either argument alone is enough. For high = 1 - low <= 1/2 a halfspace along an axis reaches
        the second.
    """

    name = "tight"
    law = Law.LAPLACE
    theorem = "Laplace noise keeps a score and its complement within e^s under a shift of l1 length s"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        # A class that never wins is out of reach of every shift: infinity is the right answer to high = 0.
        high = never_tiny(high)
        with np.errstate(divide="ignore"):
            scores, complement = lowered_log(low / high) / 2, lowered_log(1 / ((1 - low) + high))
        return np.maximum(scores, complement)
