"""The rounded normal law as a table of 64-bit boundaries: a uniform 64-bit word falls into exactly one cell.

A draw is then an integer operation on random bits: the same on every device, to the bit, and its law is known exactly, because
the probability of a cell is the distance of two integers divided by 2^64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

# No draw goes beyond this many standard deviations (rounded up to a whole cell); a normal number does with probability 2e-17.
CUT = 8.5
GUIDE_BITS = 16
_WORD = 2.0**64
# A table of a fine grid on 65,536 levels takes tens of megabytes; a process certifies with one or two of them.
_KEPT = 4


@dataclass(frozen=True, eq=False)
class NormalTable:
    """round(steps * Z) for standard normal Z, cut at ``reach``: the value is the number of boundaries <= U, minus ``reach``.

    ``boundaries`` are 2 * reach growing integers; U is a uniform 64-bit word.

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

    reach: int
    boundaries: NDArray[np.uint64]

    @cached_property
    def high_words(self) -> NDArray[np.uint32]:
        """The first 32 bits of each boundary: they decide alone unless a word's first 32 bits are equal to one of them."""
        return (self.boundaries >> np.uint64(32)).astype(np.uint32)

    @cached_property
    def ladder(self) -> NDArray[np.int64]:
        """``high_words`` between two ends that no word reaches: entry c is at most a word exactly if c boundaries may be."""
        return np.concatenate(([-1], self.high_words.astype(np.int64), [1 << 32]))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """How many boundaries lie before the words that begin with each 16 bits; one entry more for the end."""
        firsts = np.arange((1 << GUIDE_BITS) + 1, dtype=np.int64) << (32 - GUIDE_BITS)
        return np.searchsorted(self.high_words.astype(np.int64), firsts, side="left").astype(np.int64)

    @cached_property
    def guide(self) -> NDArray[np.float32]:
        """The value by the word's first 16 bits; NaN where a boundary lies among the words that begin with them."""
        starts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - GUIDE_BITS)
        first = self.values(starts)
        last = self.values(starts | np.uint64((1 << (64 - GUIDE_BITS)) - 1))
        return np.where(first == last, first, np.nan).astype(np.float32)

    def values(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The definition: which cell each 64-bit word falls into, from -reach to reach."""
        return np.searchsorted(self.boundaries, words, side="right").astype(np.int64) - self.reach


def distance(steps: float) -> float:
    """The bound on the total variation distance of ``normal_table(steps)``."""
    return 2.0**-49 + 2 * CUT * steps * 2.0**-64


@lru_cache(maxsize=_KEPT)
def normal_table(steps: float) -> NormalTable:
    """The table of ``steps`` (at least 64) cells for one standard deviation."""
    reach = math.ceil(CUT * steps)
    width = 1.0 / steps
    middles = np.arange(reach, 0, -1, dtype=np.float64) * width
    tails = np.cumsum(np.rint(_cells(middles, width) * _WORD).astype(np.uint64))
    # A fine grid's outermost cells are empty; a boundary of 0 would have its mirror image at 2^64, which is no word.
    below = np.maximum(tails, np.uint64(1))
    above = np.uint64(0) - below[::-1]
    return NormalTable(reach, np.concatenate((below, above)))


def _cells(middle: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """The probability that a standard normal number lies within half a width of each middle."""
    c, d = middle * middle, width * width
    he2, he4, he6 = c - 1, (c - 6) * c + 3, ((c - 15) * c + 45) * c - 15
    correction = d * (he2 / 24 + d * (he4 / 1920 + d * he6 / 322560))
    density = np.exp(-c / 2) * (width / math.sqrt(2 * math.pi))
    return density * (1 + correction)
