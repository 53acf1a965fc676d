"""Noise laws as tables of 64-bit boundaries, and the random words that are looked up in them.

A draw is then an integer operation on random bits: the same on every device, to the bit, and its law is known exactly, because
the probability of a cell is the distance of two integers divided by 2^64. ``normal_table`` and ``laplace_table`` make them.

The generator is Philox4x64-10 (Salmon et al. 2011) as numpy has it: a block cipher on a counter. One block is 4 words of 64
bits, taken here as 8 of 32 bits, the lower half first. Block b of a stream is the cipher of counter b + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from twinproof.keys import Key

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


# No draw goes beyond this many standard deviations (rounded up to a whole cell); a normal number does with probability 2e-17.
NORMAL_CUT = 8.5
# A table of a fine grid on 65,536 levels takes tens of megabytes; a process certifies with one or two of them.
_KEPT = 4


def normal_distance(steps: float) -> float:
    """The bound on the total variation distance of ``normal_table(steps)``."""
    return 2.0**-49 + 2 * NORMAL_CUT * steps * 2.0**-64


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
    middles = np.arange(math.ceil(NORMAL_CUT * steps), 0, -1, dtype=np.float64) * width
    return NoiseTable.of_cells(_cells(middles, width))


def _cells(middle: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """The probability that a standard normal number lies within half a width of each middle."""
    c, d = middle * middle, width * width
    he2, he4, he6 = c - 1, (c - 6) * c + 3, ((c - 15) * c + 45) * c - 15
    correction = d * (he2 / 24 + d * (he4 / 1920 + d * he6 / 322560))
    density = np.exp(-c / 2) * (width / math.sqrt(2 * math.pi))
    return density * (1 + correction)


NORMAL = TableFamily(NORMAL_CUT, normal_table, normal_distance)


# No draw goes beyond this many scales (rounded up to a whole cell); a Laplace number does with probability 2.4e-16.
LAPLACE_CUT = 36.0
# The table of the finest grid takes 38 megabytes.
_KEPT_LAPLACE_TABLES = 2


def laplace_distance(steps: float) -> float:
    """The bound on the total variation distance of ``laplace_table(steps)``."""
    return 2.0**-49 + 2 * LAPLACE_CUT * steps * 2.0**-64


@lru_cache(maxsize=_KEPT_LAPLACE_TABLES)
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
    middles = np.arange(math.ceil(LAPLACE_CUT * steps), 0, -1, dtype=np.float64) * width
    return NoiseTable.of_cells(np.exp(-middles) * math.sinh(width / 2))


LAPLACE = TableFamily(LAPLACE_CUT, laplace_table, laplace_distance)


BLOCK_WORDS = 8
_KEY_BYTES = 16
_KEYS_TOGETHER = 1024


@dataclass(frozen=True)
class Stream:
    """The two 128-bit cipher keys of one noise stream: the words that are drawn, and those that decide ties.

    Guarantees
        Cipher keys are different parts of outputs of SHAKE-256 (``Key.stream``): for each purpose one output holds the keys of
        1,024 inputs after each other, those of the words and of their refinement.
    """

    words: int
    refinement: int

    @classmethod
    def named(cls, key: Key, purpose: str, index: int) -> Stream:
        """The stream of input ``index`` for ``purpose``."""
        block, place = divmod(index, _KEYS_TOGETHER)
        first = 2 * _KEY_BYTES * place
        both = _keys_together(key, purpose, block)[first : first + 2 * _KEY_BYTES]
        return cls(int.from_bytes(both[:_KEY_BYTES], "little"), int.from_bytes(both[_KEY_BYTES:], "little"))


@lru_cache(maxsize=64)
def _keys_together(key: Key, purpose: str, block: int) -> bytes:
    """The cipher keys of 1,024 inputs: hashing for each one alone took half of the time of deciding a target radius."""
    return key.stream(purpose, block, length=2 * _KEY_BYTES * _KEYS_TOGETHER)


def padded(dimension: int) -> int:
    """Words set aside for one vector: whole blocks, so that every draw begins with a block of its own."""
    return -(-dimension // BLOCK_WORDS) * BLOCK_WORDS


def words_from(generator: np.random.Philox, blocks: int) -> NDArray[np.uint32]:
    """The next ``blocks`` blocks of a generator, as 32-bit words."""
    raw = np.asarray(generator.random_raw(blocks * BLOCK_WORDS // 2))
    return raw.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def generator_at(cipher_key: int, block: int) -> np.random.Philox:
    """A generator whose next output is block ``block``: numpy counts up before it ciphers."""
    return np.random.Philox(key=cipher_key, counter=block)


def word_at(cipher_key: int, number: int) -> int:
    """One word of a stream."""
    block, place = divmod(number, BLOCK_WORDS)
    return int(words_from(generator_at(cipher_key, block), 1)[place])
