"""What alpha explains, against exact enumeration, and the two mistakes that would refute true certificates."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from twinproof.auditing.certificate_verdict import (
    FLIPPED,
    HELD,
    REFUTED_BELOW,
    UNDECIDED,
    AttackedCertificate,
    Flip,
    explained_by_chance,
    nothing_inside,
    verdict_of,
)


def exact_tail(flips: int, inputs: int, alpha: float) -> float:
    share = Fraction(alpha)
    return float(sum(comb(inputs, k) * share**k * (1 - share) ** (inputs - k) for k in range(flips, inputs + 1)))


@pytest.mark.parametrize(("flips", "inputs", "alpha"), [(0, 5, 0.1), (1, 1, 0.2), (2, 12, 0.001), (5, 200, 0.01), (7, 7, 0.5)])
def test_the_tail_is_the_binomial_one(flips: int, inputs: int, alpha: float) -> None:
    assert explained_by_chance(flips, inputs, alpha, shared_noise=False) == pytest.approx(exact_tail(flips, inputs, alpha))


def test_shared_noise_bounds_the_mean_alone() -> None:
    assert explained_by_chance(10, 1000, 0.001, shared_noise=True) == pytest.approx(0.1)
    assert explained_by_chance(1, 1000, 0.001, shared_noise=True) == 1.0
    # All thousand inputs under the same draws fail together with probability alpha: a tail that takes them for independent
    # would refute what is true.
    assert explained_by_chance(1000, 1000, 0.001, shared_noise=True) >= 0.001
    assert explained_by_chance(1000, 1000, 0.001, shared_noise=False) < 1e-300


def test_balls_that_hold_no_other_input_are_counted() -> None:
    """On 16 levels the nearest other input is 0.0625 away, in any norm; a radius excludes only what is nearer than it."""
    radii = (0.0, 0.01, 0.0625, 0.062501, 0.125)
    some = [AttackedCertificate(index, 0, radius, HELD) for index, radius in enumerate(radii)]
    assert [nothing_inside([one], 16) for one in some] == [1, 1, 1, 0, 0]
    assert nothing_inside(some, 16) == 3
    assert nothing_inside(some, 255) == 1


def attacked(flips: int, undecided: int, held: int) -> list[AttackedCertificate]:
    kinds = [FLIPPED] * flips + [UNDECIDED] * undecided + [HELD] * held
    inside, outside = Flip(0.4, 0.8, 1, 90, 100, "ascent", (1, 2)), Flip(0.75, 1.5, 1, 90, 100, "walk")
    found = {FLIPPED: inside, UNDECIDED: None, HELD: outside}
    return [AttackedCertificate(index, 0, 0.5, kind, found[kind]) for index, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("flips", "undecided", "held", "inputs", "refuted", "words"),
    [
        (0, 0, 0, 12, False, "nothing to attack"),
        (0, 3, 9, 12, False, "not refuted"),
        (1, 0, 11, 12, False, "not refuted"),  # chance: 0.012
        (2, 0, 10, 12, True, "refuted"),  # chance: 0.000066
    ],
)
def test_verdicts(flips: int, undecided: int, held: int, inputs: int, refuted: bool, words: str) -> None:
    verdict = verdict_of(attacked(flips, undecided, held), inputs, 0.001, shared_noise=False)
    assert (verdict.refuted, verdict.words) == (refuted, words)
    assert (verdict.flips, verdict.undecided, verdict.attacked) == (flips, undecided, flips + undecided + held)
    assert verdict.refuted is (verdict.probability + 1e-6 < REFUTED_BELOW)


def test_ratios_are_those_of_the_flips_found() -> None:
    verdict = verdict_of(attacked(1, 2, 4), 20, 0.001, shared_noise=False)
    assert (verdict.closest, verdict.median, verdict.beyond_reach) == (0.8, 1.5, 2)
    nothing = verdict_of(attacked(0, 2, 0), 20, 0.001, shared_noise=False)
    assert (nothing.closest, nothing.median, nothing.beyond_reach) == (None, None, 2)


def test_abstentions_are_trials_too() -> None:
    """Of 1,000 inputs at the boundary two get an answer, each a wrong one: that is what alpha 0.001 promises, no refutation.

    The planted mistake, answers for trials, would call it refuted.
    """
    assert not verdict_of(attacked(2, 0, 0), 1000, 0.001, shared_noise=False).refuted
    assert verdict_of(attacked(2, 0, 0), 2, 0.001, shared_noise=False).refuted
