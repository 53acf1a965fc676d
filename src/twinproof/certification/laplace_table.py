"""The rounded Laplace law as a table of 64-bit boundaries."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from twinproof.certification.noise_table import NoiseTable, TableFamily

# No draw goes beyond this many scales (rounded up to a whole cell); a Laplace number does with probability 2.4e-16.
CUT = 36.0
# The table of the finest grid takes 38 megabytes.
_KEPT = 2


def distance(steps: float) -> float:
    """The bound on the total variation distance of ``laplace_table(steps)``."""
    return 2.0**-49 + 2 * CUT * steps * 2.0**-64


@lru_cache(maxsize=_KEPT)
def laplace_table(steps: float) -> NoiseTable:
    """round(steps * L) for a Laplace number L of scale 1, cut at 36 scales; ``steps`` is at least 1.

    Guarantees
        The total variation distance to the law of round(steps * L) is at most ``distance(steps)``: 2^-49 plus 2^-64 for each
        of the 72 * steps cells. Proof: as for the normal table, the sum of the errors of all cells but the middle one bounds
        it. Let u = 2^-53 and c = k d the middle of the k-th cell, of width d = 1/steps. Its probability is exactly
        e^-c sinh(d/2). In float64 d carries a relative error of 2u (with the product that makes ``steps``), c 3u, so e^-c one
        of 3cu; the exponential adds at most 3u, the hyperbolic sine 3u and what d brings to it (its slope times d, over
        itself, is at most 1.1 for d <= 1) 2.2u, the product 1u. Weighted with the cells' probabilities, c counts as at most
        1: 12.2u. Beyond the cut lie e^-36 < 2.1u. Together that is below 16u = 2^-49. Rounding a cell to a multiple of 2^-64
        adds at most 2^-65, and the same for the cells that are empty.
        Test: against 60-digit arithmetic, with shifted, widened and coarse tables as planted bugs.
    """
    width = 1.0 / steps
    middles = np.arange(math.ceil(CUT * steps), 0, -1, dtype=np.float64) * width
    return NoiseTable.of_cells(np.exp(-middles) * math.sinh(width / 2))


LAPLACE = TableFamily(CUT, laplace_table, distance)
