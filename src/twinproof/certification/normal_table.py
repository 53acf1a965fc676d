"""The rounded normal law as a table of 64-bit boundaries."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twinproof.certification.noise_table import NoiseTable, TableFamily

# No draw goes beyond this many standard deviations (rounded up to a whole cell); a normal number does with probability 2e-17.
CUT = 8.5
# A table of a fine grid on 65,536 levels takes tens of megabytes; a process certifies with one or two of them.
_KEPT = 4


def distance(steps: float) -> float:
    """The bound on the total variation distance of ``normal_table(steps)``."""
    return 2.0**-49 + 2 * CUT * steps * 2.0**-64


@lru_cache(maxsize=_KEPT)
def normal_table(steps: float) -> NoiseTable:
    """round(steps * Z) for standard normal Z, cut at 8.5 deviations; ``steps`` is at least 64.

    Guarantees
        The total variation distance to the law of round(steps * Z) is at most ``distance(steps)``: 2^-49 plus 2^-64 for each
        of the 17 * steps cells. Proof: a distance is half the sum of the cells' errors. The middle cell takes what the others
        leave, so that its error is at most the sum of theirs, and that sum is the bound. Let u = 2^-53 and c the middle of a
        cell of width d = 1/steps, d <= 1/64, in standard deviations. Its probability d phi(c) (1 + He2 d^2/24 + He4 d^4/1920
        + He6 d^6/322560), He the Hermite polynomials at c, lacks terms of d^8, whose sum over all cells is below 1e-20. In
        float64 d carries a relative error of 2u (with the product that makes ``steps``), c 3u, the exponent c^2/2 an absolute
        one of 3.5 c^2 u; the exponential adds at most 3u, the constant, the products and the factor in brackets 8u. Weighted
        with the cells' probabilities, c^2 counts as 1: 14.5u. Beyond the cut lie 0.2u. Together that is below 16u = 2^-49.
        Rounding a cell to a multiple of 2^-64 adds at most 2^-65, and the same for the cells that are empty.
        Test: against 60-digit arithmetic, with shifted, widened and coarse tables as planted bugs.
    """
    width = 1.0 / steps
    middles = np.arange(math.ceil(CUT * steps), 0, -1, dtype=np.float64) * width
    return NoiseTable.of_cells(_cells(middles, width))


def _cells(middle: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """The probability that a standard normal number lies within half a width of each middle."""
    c, d = middle * middle, width * width
    he2, he4, he6 = c - 1, (c - 6) * c + 3, ((c - 15) * c + 45) * c - 15
    correction = d * (he2 / 24 + d * (he4 / 1920 + d * he6 / 322560))
    density = np.exp(-c / 2) * (width / math.sqrt(2 * math.pi))
    return density * (1 + correction)


NORMAL = TableFamily(CUT, normal_table, distance)
