"""Random 32-bit words by name and number: any part of any stream can be made without making what comes before it.

The generator is Philox4x64-10 (Salmon et al. 2011) as numpy has it: a block cipher on a counter. One block is 4 words of 64
bits, taken here as 8 of 32 bits, the lower half first. Block b of a stream is the cipher of counter b + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twinproof.randomness import Key

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
