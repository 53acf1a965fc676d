"""Laplace noise on whole numbers, exactly, and the mechanism made of it.

A table of probabilities, or a quantile in floats, is close to its law but not equal to it, and its end distinguishes
neighbours: good for (epsilon, delta), not for pure epsilon. Here the law is exact, given ideal random bits.

How. Laplace noise is the difference of two geometric numbers, P(n) proportional to q^n with q = exp(-1/scale). The binary
digits of a geometric number are independent: digit j is 1 with probability 1 / (1 + exp(2^j / scale)); and what lies beyond the
first b digits is again geometric, with q^(2^b). A probability is met exactly by comparing random digits with its own, as many
as it takes: the first 64 decide except with probability 2^-64, and then the next 64 do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from twinproof import checks
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.ledger import Ledger

LARGEST_SCALE = 2**50
LARGEST_DRAW = 2**62
"""Draws beyond this magnitude are cut off; see ``discrete_laplace``."""

# Digits beyond those of the scale: what they do not cover has probability exp(-64) or less, and is drawn when it happens.
_MORE_DIGITS = 7
_WORD = 2**64
_LESS_NOISE = "allow a larger epsilon, or use fewer features"
_AT_ONCE = 2**14


@dataclass(frozen=True)
class Chance:
    """exp(-``exponent``), or 1 / (1 + exp(``exponent``)) where ``logistic``, to as many binary digits as are asked for."""

    exponent: Fraction
    logistic: bool

    def digits(self, words: int) -> int:
        """floor(probability * 2^(64 words)), exactly.

        Found in decimal arithmetic with an error bound, at more and more places until both ends of the bound have the same
        floor. It ends, because the probability of a rational exponent above 0 is irrational.
        """
        return _digits(self, words)


@lru_cache(maxsize=4096)
def _digits(chance: Chance, words: int) -> int:
    places = 20 * words + 40
    while True:
        context = Context(prec=places)
        exponent = context.divide(Decimal(chance.exponent.numerator), Decimal(chance.exponent.denominator))
        # Not -exponent: the operator rounds to the thread's own context, whatever this one says.
        probability = context.exp(context.minus(exponent))
        if chance.logistic:
            probability = context.divide(probability, context.add(Decimal(1), probability))
        # Relative errors: the quotient's 10^(1-places) times an exponent below 10^4, and four operations.
        error = Fraction(1, 10 ** (places - 10))
        low, high = (math.floor(Fraction(probability) * (1 + side * error) * (1 << 64 * words)) for side in (-1, 1))
        if low == high:
            return low
        places *= 2


def decide(chance: Chance, words: NDArray[np.uint64], further: Callable[[int, int], int]) -> NDArray[np.bool_]:
    """Whether each event of that chance happens, by a uniform word each; ``further(index, depth)`` gives the words after it."""
    threshold = np.uint64(chance.digits(1))
    happens = words < threshold
    for index in np.flatnonzero(words == threshold).tolist():
        happens[index] = _happens(chance, partial(further, index), depth=2)
    return happens


def _happens(chance: Chance, word: Callable[[int], int], depth: int) -> bool:
    """Compares random words with the digits of the probability, from ``depth`` on, until two differ."""
    while (drawn := word(depth)) == (wanted := chance.digits(depth) % _WORD):
        depth += 1
    return drawn < wanted


def geometric(key: Key, purpose: str, *counters: int, scale: int, count: int) -> tuple[NDArray[np.int64], dict[int, int]]:
    """``count`` numbers n >= 0 with P(n) proportional to exp(-n / scale): their low digits, and by index what lies beyond."""
    digits = scale.bit_length() + _MORE_DIGITS
    words = key.words(purpose, *counters, count=(digits + 1) * count).reshape(digits + 1, count)

    def further_of(digit: int) -> Callable[[int, int], int]:
        return lambda index, depth: int(key.words(f"{purpose}, further", *counters, digit, index, depth, count=1)[0])

    drawn = np.zeros(count, dtype=np.int64)
    for digit in range(digits):
        happens = decide(Chance(Fraction(2**digit, scale), logistic=True), words[digit], further_of(digit))
        drawn |= happens.astype(np.int64) << digit
    beyond = Chance(Fraction(2**digits, scale), logistic=False)
    reached = np.flatnonzero(decide(beyond, words[digits], further_of(digits))).tolist()
    return drawn, {index: _run(beyond, key, purpose, *counters, index) << digits for index in reached}


def _run(chance: Chance, key: Key, purpose: str, *counters: int) -> int:
    """How often in a row an event happens that has happened once."""

    def word(attempt: int, depth: int) -> int:
        return int(key.words(f"{purpose}, beyond", *counters, attempt, depth, count=1)[0])

    times = 1
    while _happens(chance, partial(word, times), depth=1):
        times += 1
    return times


def discrete_laplace(key: Key, purpose: str, *counters: int, scale: int, count: int) -> NDArray[np.int64]:
    """``count`` independent whole numbers k with P(k) proportional to exp(-|k| / scale).

    Guarantees
        Exactly that law, given ideal random bits, except that |k| is cut off at 2^62. Added to sums of magnitude below 2^61 and
        cut off at 2^61 afterwards, the answer is that of noise without a cut: the release is a function of the exact
        mechanism's. Tests: the exact law at small scales, variance at large ones, digits against other arithmetic, words that
        leave a comparison open; noise shared by two outputs, one geometric number in place of two and a scale 2 % off are seen.
    """
    checks.whole(1, LARGEST_SCALE, scale=scale, fix=_LESS_NOISE)
    parts = [np.zeros(0, dtype=np.int64)]
    for part, first in enumerate(range(0, count, _AT_ONCE)):
        size = min(_AT_ONCE, count - first)
        up, down = (geometric(key, purpose, *counters, part, side, scale=scale, count=size) for side in (0, 1))
        drawn = up[0] - down[0]
        for index in up[1].keys() | down[1].keys():  # in Python's integers, which have no end
            exact = int(drawn[index]) + up[1].get(index, 0) - down[1].get(index, 0)
            drawn[index] = max(-LARGEST_DRAW, min(exact, LARGEST_DRAW))
        parts.append(drawn)
    return np.concatenate(parts)


def discrete_laplace_deviation(scale: int) -> float:
    """The standard deviation: sqrt(2 q) / (1 - q) with q = exp(-1/scale), close to sqrt(2) scale."""
    return math.sqrt(0.5) / math.sinh(0.5 / scale)


LARGEST_SUM = 2**53
_LARGEST_RELEASE = 2**61
_PURPOSE = "functional mechanism"


@dataclass(frozen=True)
class GridLaplace:
    """Laplace noise on a vector of whole numbers of which one record moves at most ``moved``, by ``sensitivity`` in l1.

    Guarantees
        - A release is (1 / ``noise_multiplier``, 0)-private, and (epsilon, delta)-private wherever ``event`` is. Proof of the
          first: P(k) = c exp(-|k| / scale) on whole numbers, and scale >= noise_multiplier * sensitivity. Of the second: let
          one number move by v. The profile of the discrete noise meets 1 - exp((epsilon - v / scale) / 2), the continuous one,
          at epsilon = (v - 2k) / scale for every k, and between two of them it is at most its value at the lower one: it is
          below the continuous profile of a move by v + 2. Moves of several numbers add up (``laplace_delta``), so that
          ``sensitivity + 2 moved`` covers them; the scale is computed with it.
        - What leaves are whole numbers: no low-order bits of floats. The noise is exact (``discrete_laplace``).
    """

    sensitivity: int
    moved: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.whole(1, sensitivity=self.sensitivity, moved=self.moved)
        checks.whole(1, LARGEST_SCALE, scale=self.scale, fix=_LESS_NOISE)

    @property
    def event(self) -> LaplaceEvent:
        return LaplaceEvent(self.noise_multiplier)

    @property
    def scale(self) -> int:
        """Scale of the noise in steps of the grid."""
        return math.ceil(Fraction(self.noise_multiplier) * (self.sensitivity + 2 * self.moved))

    def announce(self, ledger: Ledger, purpose: str) -> AnnouncedLaplace:
        """Writes down what is about to be spent; the one release that it pays for can be made when this returns."""
        ledger.append("laplace", {"noise_multiplier": self.noise_multiplier, "purpose": purpose})
        return AnnouncedLaplace(self, ledger.entries[-1].index)

    def noisy(self, sums: NDArray[np.int64], key: Key, counter: int) -> NDArray[np.int64]:
        """The sums plus noise of their own each, from the stream ``counter``; nothing is counted: use ``announce``."""
        if sums.size:
            checks.between(0, LARGEST_SUM, largest_sum=int(np.abs(sums).max()), fix="use fewer records")
        noise = discrete_laplace(key, _PURPOSE, counter, scale=self.scale, count=sums.size)
        released = np.clip(sums.reshape(-1) + noise, -_LARGEST_RELEASE, _LARGEST_RELEASE)
        return np.asarray(released.reshape(sums.shape), dtype=np.int64)


class AnnouncedLaplace:
    """One release that is in the ledger; ``GridLaplace.announce`` makes it. It releases once."""

    def __init__(self, mechanism: GridLaplace, line: int) -> None:
        self._mechanism = mechanism
        self._line = line
        self._released = False

    def release(self, sums: NDArray[np.int64], key: Key) -> NDArray[np.int64]:
        if self._released:
            where, got = f"ledger line {self._line}", "a second release"
            raise ConfigError("the noise of one release would be used twice", where=where, got=got, wanted="one release")
        self._released = True
        return self._mechanism.noisy(sums, key, self._line)
