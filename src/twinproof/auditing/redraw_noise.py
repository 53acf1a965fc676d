"""Smoothing noise drawn again, from the words of docs/formats/run.md ("The noise"), with numpy and scipy alone.

Nothing here is shared with ``twinproof.certification``: the keys, the random words and the tables are made in another way.
A table's boundaries are values of the distribution function itself, where certification adds up the probabilities of cells.

Guarantees
    A draw is the one that the format describes, except where its 64-bit word lies so close to a boundary (about 2^-50 of the
    line) that two correct float64 programs may put the boundary on either side of it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

GAUSSIAN, LAPLACE = "gaussian", "laplace"
# Deviations of the law beyond which nothing is drawn.
CUTS = {GAUSSIAN: 8.5, LAPLACE: 36.0}
# float32 holds whole numbers exactly up to this one only, so noise of more steps would be rounded.
MOST_STEPS = 2**24
KEY_BYTES = 32
_INPUTS_PER_BLOCK = 1024
_WORDS_PER_COUNTER = 8
_FEW_BOUNDARIES = 8192

Steps = NDArray[np.int32]


@dataclass(frozen=True)
class Draws:
    """The draws of a law of ``steps`` grid steps per deviation on ``dimension`` coordinates, for one ``key``."""

    key: bytes
    law: str
    steps: float
    dimension: int

    def of(self, purpose: str, index: int, first: int, count: int) -> Steps:
        """Draws ``first`` onwards of input ``index``: (count, dimension) whole numbers of grid steps."""
        block, place = divmod(index, _INPUTS_PER_BLOCK)
        keys = _shake(self.key, purpose, 32 * (place + 1), block.to_bytes(8, "little"))[32 * place :]
        high, low = (self._words(int.from_bytes(part, "little"), first, count) for part in (keys[:16], keys[16:]))
        whole = (high.astype(np.uint64) << np.uint64(32)) | low
        return _below(self.law, self.steps, whole) - np.int32(_reach(self.law, self.steps))

    def _words(self, cipher_key: int, first: int, count: int) -> NDArray[np.uint32]:
        """(count, dimension): each draw begins with a counter of its own."""
        counters = -(-self.dimension // _WORDS_PER_COUNTER)
        # numpy adds one to the counter before it is enciphered.
        generator = np.random.Philox(key=cipher_key, counter=first * counters)
        raw = np.asarray(generator.random_raw(count * counters * 4))
        words = raw.astype("<u8").view("<u4").reshape(count, counters * _WORDS_PER_COUNTER)
        return words[:, : self.dimension]


def subkey(key: bytes, purpose: str) -> bytes:
    """The key of one part of what ``key`` is used for."""
    return _shake(key, purpose, KEY_BYTES)


def _shake(key: bytes, purpose: str, length: int, counter: bytes = b"") -> bytes:
    name = purpose.encode()
    return hashlib.shake_256(key + len(name).to_bytes(8, "little") + name + counter).digest(length)


def _below(law: str, steps: float, words: NDArray[np.uint64]) -> Steps:
    """How many boundaries are at most each word; most words are told by their first bits, the others are searched for."""
    guide, shift = _guide(law, steps)
    counts = guide[(words >> shift).astype(np.intp)]
    unknown = counts < 0
    counts[unknown] = _table(law, steps).searchsorted(words[unknown], side="right")
    return counts


def _reach(law: str, steps: float) -> int:
    return math.ceil(CUTS[law] * steps)


@lru_cache(maxsize=2)
def _table(law: str, steps: float) -> NDArray[np.uint64]:
    """The boundaries between -R, ..., R: 2^64 times the probability of falling below each."""
    reach = _reach(law, steps)
    # Where the cells of R, R - 1, ..., 1 steps end, in deviations; what lies beyond the outermost cell is left out.
    ends = (np.arange(reach, -1, -1, dtype=np.float64) + 0.5) / steps
    below = ndtr(-ends) if law == GAUSSIAN else np.exp(-ends) / 2
    lower = np.maximum(np.rint((below[1:] - below[0]) * 2.0**64), 1).astype(np.uint64)
    return np.concatenate((lower, np.uint64(0) - lower[::-1]))


@lru_cache(maxsize=2)
def _guide(law: str, steps: float) -> tuple[Steps, np.uint64]:
    """How many boundaries are at most the words that begin with the same bits, -1 where that is not one number; and how far to
    shift a word to see these bits.
    """
    table = _table(law, steps)
    bits = 16 if len(table) < _FEW_BOUNDARIES else 21
    shift = np.uint64(64 - bits)
    first = np.arange(1 << bits, dtype=np.uint64) << shift
    least = table.searchsorted(first, side="right")
    most = table.searchsorted(first | np.uint64((1 << (64 - bits)) - 1), side="right")
    return np.where(least == most, least, -1).astype(np.int32), shift
