"""The exact noise: digits of its probabilities, its law at small and large scales, and words that leave a comparison open."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.privacy import discrete_laplace as grid_laplace
from twinproof.privacy.discrete_laplace import (
    LARGEST_DRAW,
    LARGEST_SCALE,
    LARGEST_SUM,
    Chance,
    GridLaplace,
    decide,
    discrete_laplace,
    discrete_laplace_deviation,
    geometric,
)
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.mechanisms import laplace_delta

KEY = Key.from_seed(5)
SMALLEST_P = 1e-6
Draws = NDArray[np.int64]


def exponential(exponent: Fraction) -> Fraction:
    """exp(exponent) to some 300 binary digits, from its series, in fixed point."""
    halvings, bits = 10, 600
    step = (exponent.numerator << bits) // (exponent.denominator << halvings)
    term = total = 1 << bits
    for order in range(1, 200):
        term = (term * step >> bits) // order
        total += term
    for _ in range(halvings):
        total = total * total >> bits
    return Fraction(total, 1 << bits)


@pytest.mark.parametrize(
    "exponent", [Fraction(1, 2**50), Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(64), Fraction(128)]
)
def test_digits_are_those_of_another_arithmetic(exponent: Fraction) -> None:
    power = exponential(exponent)
    for logistic, truth in ((False, 1 / power), (True, 1 / (1 + power))):
        for words in (1, 2, 3):
            assert Chance(exponent, logistic).digits(words) == math.floor(truth * 2 ** (64 * words))


def test_an_open_comparison_goes_on_and_is_never_cut() -> None:
    """Equal first words: the second decide; equal again: the third. Rounding the probability would decide wrongly."""
    chance = Chance(Fraction(1, 3), logistic=True)
    first, second, third = (chance.digits(depth) % 2**64 for depth in (1, 2, 3))
    words = np.full(3, first, dtype=np.uint64)
    answers = {(0, 2): second - 1, (1, 2): second + 1, (2, 2): second, (2, 3): third - 1}
    assert decide(chance, words, lambda index, depth: answers[index, depth]).tolist() == [True, False, True]
    answers[2, 3] = third + 1
    assert decide(chance, words, lambda index, depth: answers[index, depth]).tolist() == [True, False, False]
    sure = np.array([first - 1, first + 1], dtype=np.uint64)
    assert decide(chance, sure, lambda index, depth: 0).tolist() == [True, False]


class Scripted(Key):
    """A key whose words are 0, except where a run beyond the digits is to end: after 3 and 20 for the two numbers of a draw."""

    def words(self, purpose: str, *counters: int, count: int) -> NDArray[np.uint64]:
        ends = purpose.endswith("beyond") and counters[-2] >= (3 if counters[-4] == 0 else 20)
        return np.full(count, 2**64 - 1 if ends else 0, dtype=np.uint64)


def test_what_lies_beyond_the_digits_is_drawn_too() -> None:
    """All digits 1, and the event beyond them three times in a row: it has probability exp(-192), and is not forgotten."""
    low, beyond = geometric(Scripted(bytes(32)), "test", 0, scale=5, count=2)
    digits = (5).bit_length() + 7
    assert low.tolist() == [(1 << digits) - 1] * 2
    assert beyond == {0: 3 << digits, 1: 3 << digits}


@pytest.mark.parametrize(("scale", "wanted"), [(5, -17 << 10), (2**44, -17 << 52), (LARGEST_SCALE, -LARGEST_DRAW)])
def test_the_difference_is_exact_before_it_is_cut(scale: int, wanted: int) -> None:
    """Two numbers beyond 64 bits: cut one by one, their difference would be another one."""
    assert discrete_laplace(Scripted(bytes(32)), "test", scale=scale, count=2).tolist() == [wanted] * 2


def p_value(draws: Draws, scale: int) -> float:
    """Chi-square of the counts against the law, for every value that is expected at least 20 times, and both tails."""
    q = math.exp(-1 / scale)
    reach = int(scale * math.log(draws.size / 40 / scale))
    inner = (1 - q) / (1 + q) * q ** np.abs(np.arange(-reach, reach + 1))
    tail = q ** (reach + 1) / (1 + q)
    counted = np.array([np.sum(draws < -reach), *(np.sum(draws == k) for k in range(-reach, reach + 1)), np.sum(draws > reach)])
    return float(stats.chisquare(counted, np.array([tail, *inner, tail]) * draws.size).pvalue)


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_the_law_is_exact_at_small_scales(scale: int) -> None:
    assert p_value(discrete_laplace(KEY, "law", scale, scale=scale, count=300_000), scale) > SMALLEST_P


def rounded_floats(scale: int) -> Draws:
    return np.rint(np.random.default_rng(1).laplace(scale=scale, size=300_000)).astype(np.int64)


def signed_geometric(scale: int) -> Draws:
    draws, _ = geometric(KEY, "one", scale=scale, count=300_000)
    return np.where(np.random.default_rng(2).integers(2, size=draws.size) > 0, draws, -draws)


PLANTED: dict[str, Callable[[int], Draws]] = {
    "rounded floats": rounded_floats,
    "one geometric number and a sign": signed_geometric,
    "one of the two numbers": lambda scale: geometric(KEY, "one", scale=scale, count=300_000)[0],
    "twice the noise": lambda scale: 2 * discrete_laplace(KEY, "law", scale=scale, count=300_000),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_other_laws_are_seen(name: str) -> None:
    assert p_value(PLANTED[name](2), 2) < SMALLEST_P


def deviation_error(draws: Draws, scale: float) -> float:
    """In standard errors: a Laplace number's squared deviation is known to sqrt(5/n) of itself."""
    return abs(float(np.mean(draws.astype(np.float64) ** 2)) / (2 * scale**2) - 1) / math.sqrt(5 / draws.size)


@pytest.mark.parametrize("scale", [2**30 + 1, 2**50])
def test_the_deviation_at_large_scales(scale: int) -> None:
    """Six standard errors are 2.1 % of the variance; a scale 2 % off is twice that."""
    draws = discrete_laplace(KEY, "deviation", scale=scale, count=400_000)
    assert deviation_error(draws, scale) < 6
    assert deviation_error(draws, 1.02 * scale) > 6
    assert deviation_error(draws, 0.98 * scale) > 6
    assert stats.kstest(draws / scale, stats.laplace.cdf).pvalue > SMALLEST_P
    assert discrete_laplace_deviation(scale) == pytest.approx(math.sqrt(2) * scale, rel=1e-6)


def discrete_delta(epsilon: float, scale: int, moves: tuple[int, ...]) -> float:
    """The smallest delta of discrete Laplace noise for those moves, summed over every answer that matters."""
    q, reach = math.exp(-1 / scale), 40 * scale + max(moves)
    values = np.arange(-reach, reach + 1)
    here = there = np.ones(1)
    for move in moves:
        own, other = ((1 - q) / (1 + q) * q ** np.abs(values - centre) for centre in (0, move))
        here, there = np.outer(here, own).ravel(), np.outer(there, other).ravel()
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


MOVES = [(5, (7,)), (3, (1,)), (1, (2,)), (2, (1, 3)), (2, (2, 2))]
EPSILONS = np.linspace(0, 2.6, 40)


@pytest.mark.parametrize(("scale", "moves"), MOVES)
def test_two_steps_for_each_number_cover_the_discrete_profile(scale: int, moves: tuple[int, ...]) -> None:
    covered = sum(moves) + 2 * len(moves)
    for epsilon in EPSILONS:
        assert discrete_delta(epsilon, scale, moves) <= laplace_delta(epsilon, scale, covered) + 1e-12
    # Planted: without the two steps. The discrete law has more mass at the largest loss than the continuous one.
    assert any(discrete_delta(one, 5, (7,)) > laplace_delta(one, 5, 7) * 1.01 for one in EPSILONS)
    assert discrete_delta(7 / 5, 5, (7,)) == pytest.approx(0, abs=1e-12), "though it is as pure"


def test_the_scale_keeps_pure_epsilon_in_exact_arithmetic() -> None:
    for sensitivity, multiplier in itertools.product((1, 1000, 2**30 + 1), (0.1, 1 / 3, 1000.0)):
        mechanism = GridLaplace(sensitivity, 3, multiplier)
        assert Fraction(sensitivity, mechanism.scale) <= 1 / Fraction(multiplier)
        assert Fraction(mechanism.scale - 1) < Fraction(multiplier) * (sensitivity + 6), "and is no larger than it must be"
        assert mechanism.event.noise_multiplier == multiplier


def test_a_release_is_the_sum_plus_its_own_noise(tmp_path: Path) -> None:
    mechanism, sums = GridLaplace(100, 1, 2.0), np.arange(12, dtype=np.int64).reshape(3, 4) * 1000
    ledger = Ledger.create(tmp_path / "ledger", config_sha256="0" * 64, delta=1e-5)
    first, second = mechanism.announce(ledger, "one"), mechanism.announce(ledger, "two")
    noise = [announced.release(sums, KEY) - sums for announced in (first, second)]
    assert noise[0].shape == (3, 4)
    assert (noise[0] != noise[1]).any(), "each line has noise of its own"
    assert len(np.unique(noise[0])) > 9, "and each number"
    assert [entry.body for entry in ledger.entries[1:]] == [
        {"noise_multiplier": 2.0, "purpose": name} for name in ("one", "two")
    ]
    with pytest.raises(ConfigError, match="used twice"):
        first.release(sums, KEY)


@pytest.mark.parametrize("noise", [2**62, -(2**62)])
def test_noise_beyond_the_cut_gives_the_same_answer_for_all_sums(monkeypatch: pytest.MonkeyPatch, noise: int) -> None:
    def drawn(*names: object, scale: int, count: int) -> NDArray[np.int64]:
        return np.full(count, noise, dtype=np.int64)

    monkeypatch.setattr(grid_laplace, "discrete_laplace", drawn)
    sums = np.array([-LARGEST_SUM, 0, LARGEST_SUM], dtype=np.int64)
    assert set(GridLaplace(1, 1, 1.0).noisy(sums, KEY, 0).tolist()) == {int(math.copysign(2**61, noise))}


def test_mechanisms_and_sums_without_meaning_are_refused(tmp_path: Path) -> None:
    wrong = [
        ((0, 1, 1.0), "sensitivity"),
        ((1, 0, 1.0), "moved"),
        ((1, 1, 0.0), "noise_multiplier"),
        ((2**45, 1, 1e3), "scale"),
    ]
    for settings, name in wrong:
        with pytest.raises(ConfigError, match=f"{name} cannot be used"):
            GridLaplace(*settings)
    for scale in (0, LARGEST_SCALE + 1):
        with pytest.raises(ConfigError, match="scale cannot be used"):
            discrete_laplace(KEY, "refused", scale=scale, count=1)
    with pytest.raises(ConfigError, match="largest_sum cannot be used"):
        GridLaplace(1, 1, 1.0).noisy(np.array([LARGEST_SUM + 1]), KEY, 0)
    ledger = Ledger.create(tmp_path / "ledger", config_sha256="0" * 64, delta=1e-5)
    ledger.append("close", {"steps": 0, "model_sha256": "0" * 64, "epsilon": None, "epsilon_rdp": None})
    with pytest.raises(RunError, match="cannot be added"):
        GridLaplace(1, 1, 1.0).announce(ledger, "late")
