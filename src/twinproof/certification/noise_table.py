"""A law of whole numbers as a table of 64-bit boundaries: a uniform 64-bit word falls into exactly one cell.

A draw is then an integer operation on random bits: the same on every device, to the bit, and its law is known exactly, because
the probability of a cell is the distance of two integers divided by 2^64. ``normal_table`` and ``laplace_table`` make them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

GUIDE_BITS = 16
_WORD = 2.0**64


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """A symmetric law on -reach..reach: the value is the number of boundaries <= U, minus ``reach``.

    ``boundaries`` are 2 * reach growing integers; U is a uniform 64-bit word.
    """

    reach: int
    boundaries: NDArray[np.uint64]

    @classmethod
    def of_cells(cls, outwards: NDArray[np.float64]) -> NoiseTable:
        """The table whose cells -reach, ..., -1 have these probabilities; their mirror images have the same, 0 has the rest.

        Guarantees
            Each probability is rounded to a multiple of 2^-64, which changes it by at most 2^-65; an empty cell at the end may
            count 1 instead. Zero's cell takes what the others leave, so that its error is at most the sum of theirs.
        """
        tails = np.cumsum(np.rint(outwards * _WORD).astype(np.uint64))
        # A fine grid's outermost cells are empty; a boundary of 0 would have its mirror image at 2^64, which is no word.
        below = np.maximum(tails, np.uint64(1))
        above = np.uint64(0) - below[::-1]
        return cls(len(outwards), np.concatenate((below, above)))

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


@dataclass(frozen=True)
class TableFamily:
    """The tables of one law, by steps of the grid for one deviation.

    ``cut`` deviations hold all draws; ``distance`` bounds the total variation between a ``table`` and the rounded law.
    """

    cut: float
    table: Callable[[float], NoiseTable]
    distance: Callable[[float], float]
