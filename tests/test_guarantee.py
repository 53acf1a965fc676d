"""What a promise of privacy means in plain words: never fewer right guesses than the promise allows, and a warning in time."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from scipy.stats import norm

from twinproof.guarantee import EMPTY_EPSILON, WEAK_EPSILON, WEAK_WORDS, guessing_words, right_guesses
from twinproof.privacy.accounting import GaussianEvent, epsilon_pld


def percent(epsilon: float, delta: float) -> float:
    text = right_guesses(epsilon, delta)
    return 100.0 if text is None else float(text.removesuffix(" %"))


@pytest.mark.parametrize(
    ("epsilon", "delta", "text"),
    [
        (0.0, 0.0, "50.0 %"),
        (0.0, 1e-5, "50.1 %"),  # rounded up, as delta is not nothing
        (1.0, 1e-5, "73.2 %"),
        (3.0, 1e-5, "95.3 %"),
        (3.0, 0.5, "97.7 %"),
        (8.0, 1e-5, "99.97 %"),
        (9.2, 1e-5, "99.99 %"),
        (9.3, 1e-5, None),
        (50.0, 1e-5, None),
        (1e9, 1e-5, None),
        (math.inf, 1e-5, None),
        (math.nan, 1e-5, None),
    ],
)
def test_known_values(epsilon: float, delta: float, text: str | None) -> None:
    assert right_guesses(epsilon, delta) == text


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 2.2, 3.0, 5.5, 7.0, 9.0])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-5, 0.01, 0.3])
def test_the_worst_mechanism_reaches_the_bound_and_none_exceeds_what_is_printed(epsilon: float, delta: float) -> None:
    """With probability delta the record is shown; otherwise one bit, true with probability e^epsilon / (1 + e^epsilon)."""
    factor = Fraction(math.exp(epsilon))
    truth = float(100 * (Fraction(delta) + (1 - Fraction(delta)) * factor / (1 + factor)))
    closed = 100 * (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert truth == pytest.approx(closed, abs=1e-9)
    assert truth - 1e-9 <= percent(epsilon, delta) < truth + 0.1 + 1e-9


@pytest.mark.parametrize("noise", [0.3, 0.5, 0.8, 1.0, 2.0, 5.0])
def test_the_best_guess_against_gaussian_noise_is_not_right_more_often(noise: float) -> None:
    """The best test of N(0, noise^2) against N(1, noise^2) cuts in the middle."""
    delta = 1e-3
    best = 100 * float(norm.cdf(0.5 / noise))
    assert best <= percent(epsilon_pld([GaussianEvent(noise)], delta), delta)


def test_words_depend_on_epsilon() -> None:
    assert (WEAK_EPSILON, EMPTY_EPSILON) == (8.0, 10.0)
    assert "at most 95.3 % of the time" in guessing_words(3.0, 1e-5)
    assert WEAK_WORDS not in guessing_words(7.999, 1e-5)
    assert "99.97 %" in guessing_words(8.0, 1e-5)
    for epsilon in (8.0, 10.0, 50.0, math.inf):
        assert guessing_words(epsilon, 1e-5).endswith(WEAK_WORDS)
    for epsilon in (10.0, 50.0, math.inf):
        assert "says nothing" in guessing_words(epsilon, 1e-5)
