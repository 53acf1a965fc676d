"""Keys: streams that never meet, normal numbers that are finite and fine to the ends, and a secret that is never shown."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from twinproof.keys import KEY_BYTES, Key

KEY = Key.from_seed(5)


def names() -> list[tuple[str, tuple[int, ...]]]:
    """Purposes and counters that run together in a careless encoding."""
    purposes = ("", "a", "a1", "1", "12", "noise", "noise\x00", "\x01", "a\x00\x00\x00\x00\x00\x00\x00", "ä", "sampling")
    counters = ((), (0,), (1,), (2,), (12,), (97,), (1, 2), (2, 1), (0, 0), (256,), (2**32,), (2**64 - 1,), (1, 2, 3))
    return list(itertools.product(purposes, counters))


def test_streams_with_different_names_differ() -> None:
    """The same names, put together as text or bytes without lengths, do meet."""
    streams = {KEY.stream(purpose, *counters, length=32) for purpose, counters in names()}
    assert len(streams) == len(names())
    joined = {purpose + "".join(map(str, counters)) for purpose, counters in names()}
    bare = {purpose.encode() + b"".join(c.to_bytes(8, "little") for c in counters) for purpose, counters in names()}
    assert max(len(joined), len(bare)) < len(names())


def test_streams_depend_on_the_whole_key() -> None:
    streams = {KEY.stream("noise", 0, length=32)}
    for position in range(KEY_BYTES):
        secret = bytearray(KEY.secret)
        secret[position] ^= 1
        streams.add(Key(bytes(secret)).stream("noise", 0, length=32))
    assert len(streams) == KEY_BYTES + 1


def test_streams_are_repeatable_and_a_longer_one_goes_on() -> None:
    assert KEY.stream("x", 1, length=16) == Key(KEY.secret).stream("x", 1, length=64)[:16]
    assert KEY.words("x", 1, count=2).tobytes() == KEY.stream("x", 1, length=16)
    assert KEY.words("x", 1, count=0).shape == (0,)
    assert Key.from_seed(1) == Key.from_seed(1)
    assert len({Key.from_seed(seed).secret for seed in (-1, 0, 1, 10, 2**70)}) == 5


def test_counters_and_keys_that_do_not_fit_are_refused() -> None:
    for counter in (-1, 2**64):
        with pytest.raises(OverflowError):
            KEY.stream("noise", counter, length=8)
    for length in (0, 16, 31, 33):
        with pytest.raises(ValueError, match=f"holds 32 bytes, got {length}"):
            Key(bytes(length))


def test_the_secret_is_never_shown() -> None:
    key = Key(bytes(range(65, 97)))
    for text in (repr(key), str(key), f"{key}", str([key]), str({"key": key})):
        assert not any(shown in text for shown in ("ABCDEF", key.secret.hex(), str(key.secret), "65, 66"))
    assert b"ABCDEF" in pickle.dumps(key)  # able to fail: the same search finds the secret where it is shown


def test_words_are_uniform() -> None:
    words = KEY.words("uniform", count=400_000)
    assert words.dtype == np.uint64
    assert stats.kstest(words.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-6
    low = words & np.uint64(0xFF)
    assert stats.chisquare(np.bincount(low.astype(np.int64), minlength=256)).pvalue > 1e-6
    assert abs(np.corrcoef(words[:-1].astype(float), words[1:].astype(float))[0, 1]) < 6 / math.sqrt(len(words))


_TOP = 2**64 - 1


class FixedWords(Key):
    """A key whose words are given, to reach places that no search over seeds would."""

    given: NDArray[np.uint64]

    def words(self, purpose: str, *counters: int, count: int) -> NDArray[np.uint64]:
        assert len(self.given) == count
        return self.given


def normals_of(high: list[int], low: list[int]) -> NDArray[np.float64]:
    """What ``normals`` makes of these 128-bit numbers."""
    key = FixedWords(KEY.secret)
    object.__setattr__(key, "given", np.array([*high, *low], dtype=np.uint64))
    return key.normals("noise", count=len(high))


def test_normals_are_finite_at_extreme_words() -> None:
    drawn = normals_of([0, 1, 0, 1, _TOP, _TOP - 1], [0, 0, _TOP, _TOP, _TOP, 0])
    assert np.isfinite(drawn).all()
    assert 13 < drawn.max() == -drawn.min() < 14
    assert drawn[4] == drawn[5] == 0


def widest_gap(deviations: float) -> float:
    """The largest distance between neighbouring values that ``normals`` can give about there, over 2^-30: grid steps."""
    tail = float(stats.norm.sf(deviations))
    whole = int(tail * 2.0**128)
    step = max(1, whole >> 52)  # neighbouring floats of the tail probability
    numbers = [whole + step * index for index in range(64)]
    drawn = normals_of([(number >> 64) << 1 for number in numbers], [number & _TOP for number in numbers])
    return float(np.abs(np.diff(drawn)).max()) * 2.0**30


def gap_of_52_bits(deviations: float) -> float:
    """The same for inversion of a 52-bit uniform, which the values came from before."""
    first = int(float(stats.norm.sf(deviations)) * 2.0**52)
    drawn = ndtri((np.arange(first, first + 2) + 0.5) * 2.0**-52)
    return float(np.abs(np.diff(drawn)).max()) * 2.0**30


@pytest.mark.parametrize("deviations", [0.1, 1.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
def test_normals_are_finer_than_the_gradient_grid_everywhere(deviations: float) -> None:
    """Values with gaps wider than the grid would tell a sum apart from its neighbour's: only one lands on a possible value."""
    assert widest_gap(deviations) < 1e-5
    assert gap_of_52_bits(3.0) < 1 < 10 < gap_of_52_bits(6.0)


def test_normals_are_normal() -> None:
    drawn = KEY.normals("noise", 3, count=1_000_000)
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    for tail in (3.0, 4.0):
        expected = 2e6 * stats.norm.sf(tail)
        assert abs((np.abs(drawn) > tail).sum() - expected) < 6 * math.sqrt(expected)
    signs = np.sign(drawn)
    assert abs(signs.sum()) < 6 * math.sqrt(len(drawn))
    assert abs(np.corrcoef(signs, np.abs(drawn))[0, 1]) < 6 / math.sqrt(len(drawn))
    assert KEY.normals("noise", 3, count=0).shape == (0,)
