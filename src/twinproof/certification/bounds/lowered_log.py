"""The logarithm of a computed ratio, rounded down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A dozen roundings of 2**-53 each in the ratio move its logarithm by less than 2**-49; the other share pays for log itself.
_MARGIN = 2.0**-49

_TINY = 1e-300


def lowered_log(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln(ratio), never above the logarithm of the real number that ``ratio`` was computed for.

    Guarantees
        Below ln of the true ratio, where the ratio comes of at most twelve additions, products, quotients and square roots of
        positive numbers: each errs by at most 2**-53 of its result and none of them cancels, so that the ratio errs by less
        than 2**-49 of itself and its logarithm by less than 2**-49. Assumed: log errs by less than 2**-49 of its value.
    """
    logarithm = np.log(ratio)
    return np.asarray(logarithm - _MARGIN * (1 + np.minimum(np.abs(logarithm), 1000.0)), dtype=np.float64)


def never_tiny(high: NDArray[np.float64]) -> NDArray[np.float64]:
    """``high``, and 1e-300 where it is smaller but not 0: quotients by smaller numbers would overflow to infinity.

    Guarantees
        Never below ``high``; zero, which stands for a class that never wins, stays zero.
    """
    return np.where(high > 0, np.maximum(high, _TINY), 0.0)
