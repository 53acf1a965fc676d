"""PixelDP's condition (Lecuyer et al. 2019; Eq. 4 of Phan et al. 2019) solved for epsilon, at a given delta.

A layer that is (epsilon, delta)-private with respect to its input keeps every expected score p within e^epsilon p + delta, in
both directions. Both functions return the largest epsilon at which the top class then stays on top, rounded down.
"""

from __future__ import annotations

import numpy as np

from twinproof.certification.bounds.bound import Floats
from twinproof.certification.bounds.lowered_log import lowered_log


def largest_epsilon(low: Floats, high: Floats, delta: Floats) -> Floats:
    """The supremum of the epsilons with low > e^(2 epsilon) high + (1 + e^epsilon) delta; 0 where there is none.

    Guarantees
        Never above the supremum. Proof: the top class keeps more than (low - delta) / e^epsilon, every other one gets at most
        e^epsilon high + delta. With y = e^epsilon that is high y^2 + delta y + delta - low < 0; the left side grows for y > 0,
        and has the root 2 (low - delta) / (delta + sqrt(delta^2 + 4 high (low - delta))): a form in which nothing cancels.
    """
    rest = np.maximum(low - delta, np.finfo(np.float64).tiny)
    root = 2 * rest / (delta + np.sqrt(delta * delta + 4 * high * rest))
    return np.where(low - high > 2 * delta, np.maximum(lowered_log(root), 0.0), 0.0)


def largest_complement_epsilon(low: Floats, high: Floats, delta: Floats) -> Floats:
    """The supremum of the epsilons with e^epsilon (1 - low + high) < 1 - 2 delta; 0 where there is none.

    Guarantees
        Never above the supremum, and the top class stays on top. Proof: applied to the complement, privacy says that the top
        class loses to the others at most e^epsilon (1 - low) + delta; so it keeps 1 less that, and every other one gets at most
        e^epsilon high + delta.
    """
    rest = np.maximum(1 - 2 * delta, np.finfo(np.float64).tiny)
    root = rest / np.maximum((1 - low) + high, np.finfo(np.float64).tiny)
    return np.maximum(lowered_log(root), 0.0)
