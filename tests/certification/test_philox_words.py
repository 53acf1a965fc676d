"""Random access to the cipher's words: numbered without gaps, the published generator, and streams of different names."""

from __future__ import annotations

import numpy as np
import pytest

from twinproof.certification.noise_tables import BLOCK_WORDS, Stream, generator_at, padded, word_at, words_from
from twinproof.keys import Key

MASK = (1 << 64) - 1


def _cipher(counter: int, key: int) -> list[int]:
    """Philox4x64-10, written out from its definition: the four 64-bit words of a counter below 2^64."""
    words, low, high = [counter, 0, 0, 0], key & MASK, key >> 64
    for _ in range(10):
        one, two = words[0] * 0xD2E7470EE14C6C93, words[2] * 0xCA5A826395121157
        words = [two >> 64 ^ words[1] ^ low, two & MASK, one >> 64 ^ words[3] ^ high, one & MASK]
        low, high = low + 0x9E3779B97F4A7C15 & MASK, high + 0xBB67AE8584CAA73B & MASK
    return words


@pytest.mark.parametrize("key", [0, 5, (1 << 127) + 12345, (1 << 128) - 1])
@pytest.mark.parametrize("block", [0, 1, 977, 1 << 40])
def test_words_are_those_of_the_cipher_low_half_first(key: int, block: int) -> None:
    wanted = [
        half for number in range(3) for word in _cipher(block + number + 1, key) for half in (word & 0xFFFFFFFF, word >> 32)
    ]
    assert words_from(generator_at(key, block), 3).tolist() == wanted
    assert [word_at(key, block * BLOCK_WORDS + at) for at in range(24)] == wanted


def test_planted_block_that_numpy_would_start_with_is_caught() -> None:
    assert words_from(np.random.Philox(key=5, counter=0), 1).tolist() != words_from(generator_at(5, 1), 1).tolist()


@pytest.mark.parametrize(("dimension", "words"), [(1, 8), (8, 8), (9, 16), (784, 784), (3072, 3072), (3073, 3080)])
def test_vectors_take_whole_blocks(dimension: int, words: int) -> None:
    assert padded(dimension) == words


def test_every_name_has_keys_of_its_own() -> None:
    streams = [
        Stream.named(Key.from_seed(seed), purpose, index)
        for seed in (1, 2)
        for purpose in ("select", "estimate", "select-shared")
        for index in (0, 1, 2**40)
    ]
    keys = [key for stream in streams for key in (stream.words, stream.refinement)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 128 for key in keys)
    assert max(keys) > 1 << 120, "both halves of a key are used"


def test_a_stream_is_the_documented_one() -> None:
    key = Key.from_seed(6)
    for index, block, place in ((3, 0, 3), (1023, 0, 1023), (1024, 1, 0), (5000, 4, 904)):
        both = key.stream("estimate", block, length=32 * 1024)[32 * place : 32 * place + 32]
        wanted = [int.from_bytes(both[:16], "little"), int.from_bytes(both[16:], "little")]
        stream = Stream.named(key, "estimate", index)
        assert [stream.words, stream.refinement] == wanted
