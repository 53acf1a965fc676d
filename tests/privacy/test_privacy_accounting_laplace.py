"""Laplace mechanisms in the accounts: pure epsilon is never exceeded, the exact profile never undercut, nothing forgotten."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from dp_accounting.pld import privacy_loss_distribution

from twinproof.errors import ConfigError
from twinproof.privacy import accounting
from twinproof.privacy.accounting import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    epsilon_pld,
    epsilon_rdp,
    spending,
)
from twinproof.privacy.mechanisms import Laplace, laplace_delta

MULTIPLIERS = (0.1, 1 / 1.00005, 1.0, 3.0, 10.0, 20_000.0)
DELTAS = (1e-9, 1e-5, 1e-2)
STEPS = PoissonGaussianEvent(0.01, 1.0, 200)


@pytest.mark.parametrize(("multiplier", "delta"), list(itertools.product(MULTIPLIERS, DELTAS)))
def test_one_laplace_is_its_exact_profile(multiplier: float, delta: float) -> None:
    """Between the exact epsilon and pure epsilon, and as close to the exact one as the grid of losses allows."""
    found = epsilon_pld([LaplaceEvent(multiplier)], delta)
    exact = Laplace(multiplier).epsilon_at(delta)
    assert laplace_delta(found, multiplier) <= delta
    assert exact <= found <= exact + 1.1 * accounting.PLD_GRID
    assert Fraction(found) <= Fraction(math.nextafter(1 / multiplier, math.inf))
    assert found <= epsilon_rdp([LaplaceEvent(multiplier)], delta) + 1.1 * accounting.PLD_GRID


def pure_sum(multipliers: list[float]) -> float:
    """The sum of 1 / multiplier in exact arithmetic; the float that is not below it."""
    exact = sum((1 / Fraction(one) for one in multipliers), Fraction(0))
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)


@pytest.mark.parametrize("multiplier", [5e-324, 1e-310, 9.9e-301])
def test_noise_that_no_number_can_count_is_refused(multiplier: float) -> None:
    """Not by an overflow from somewhere inside."""
    for accountant in (epsilon_pld, epsilon_rdp):
        with pytest.raises(ConfigError, match=r"costs more than any number(.|\n)*LaplaceEvent"):
            accountant([LaplaceEvent(multiplier)], 1e-5)


@pytest.mark.parametrize("multiplier", [1e-300, 1e-100, 1e-12, 1e-9])
def test_noise_that_hides_nothing_is_still_counted(multiplier: float) -> None:
    cases: list[list[Event]] = [[LaplaceEvent(multiplier)], [LaplaceEvent(multiplier), LaplaceEvent(multiplier), STEPS]]
    for events in cases:
        pure = sum((1 / Fraction(one.noise_multiplier) for one in events if isinstance(one, LaplaceEvent)), Fraction(0))
        for accountant in (epsilon_pld, epsilon_rdp):
            assert 0.99 * float(pure) < accountant(events, 1e-5) < 1.01 * float(pure) + 100


MANY = [[3.0] * 20, [0.7, 1.3, 17.0, 40.0], [20_000.0] * 30, [1.0], [1 / 3] * 3]


@pytest.mark.parametrize("multipliers", MANY)
def test_pure_epsilon_is_never_exceeded(multipliers: list[float]) -> None:
    events = [LaplaceEvent(one) for one in multipliers]
    for delta in (1e-300, 1e-12, 1e-5):
        assert epsilon_pld(events, delta) <= pure_sum(multipliers)
        assert epsilon_rdp(events, delta) <= pure_sum(multipliers)
    assert epsilon_pld([LaplaceEvent(3.0)] * 20, 1e-5) < 0.95 * 20 / 3, "composition is worth its delta"


def test_planted_accounting_without_the_pure_bound_is_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of 1/20,000 are rounded up to the grid's 1/10,000: without the bound thirty of them count a third more."""
    monkeypatch.setattr(accounting, "_split", lambda events: (0.0, list(events)))
    assert epsilon_pld([LaplaceEvent(20_000.0)] * 30, 1e-12) > 1.3 * pure_sum([20_000.0] * 30)


def test_laplace_and_other_events_compose() -> None:
    """More than without, at most the sum of both, and the same in any order."""
    for multiplier in (2.0, 30.0):
        mixed: list[Event] = [LaplaceEvent(multiplier), GaussianEvent(6.0), STEPS]
        for epsilon in (epsilon_pld, epsilon_rdp):
            without, both = epsilon(mixed[1:], 1e-5), epsilon(mixed, 1e-5)
            assert without < both <= math.nextafter(without + 1 / multiplier, math.inf)
            assert both == pytest.approx(epsilon(mixed[::-1], 1e-5), rel=1e-6)


def test_two_laplace_against_the_library_by_another_way() -> None:
    """Convolved by hand from one mechanism's distribution at a grid ten times finer."""
    one = privacy_loss_distribution.from_laplace_mechanism(4.0, value_discretization_interval=1e-5)
    truth = one.compose(one).get_epsilon_for_delta(1e-3)
    found = epsilon_pld([LaplaceEvent(4.0)] * 2, 1e-3)
    assert truth - 1e-9 <= found <= truth + 3e-4
    assert truth < 0.5 - 1e-3, "below the sum, so that the pure bound does not hide the composition"


def test_planted_forgotten_event_and_confused_scale_are_seen() -> None:
    """A scale of 12 on a sensitivity of 4 is a multiplier of 3: taken for 12, or left out, epsilon is far too small."""
    truth = epsilon_pld([LaplaceEvent(3.0), STEPS], 1e-5)
    scale_for_multiplier = epsilon_pld([LaplaceEvent(12.0), STEPS], 1e-5)
    forgotten = epsilon_pld([STEPS], 1e-5)
    gaussian = epsilon_pld([GaussianEvent(3.0)], 1e-5)
    assert forgotten < scale_for_multiplier < truth - 0.1
    assert abs(gaussian - epsilon_pld([LaplaceEvent(3.0)], 1e-5)) > 0.1, "nor is it a Gaussian of that multiplier"


def test_spending_is_rounded_up_and_no_noise_has_no_epsilon() -> None:
    spent = spending([LaplaceEvent(3.0)], 1e-5)
    assert spent.epsilon >= epsilon_pld([LaplaceEvent(3.0)], 1e-5)
    assert spent.epsilon_rdp == 0.333334
    assert spending([LaplaceEvent(1.0)], 1e-300).epsilon == 1.0
    assert spending([LaplaceEvent(0.0), STEPS], 1e-5).epsilon == math.inf


@pytest.mark.parametrize("multiplier", [-1.0, math.nan, math.inf])
def test_a_multiplier_without_meaning_is_refused(multiplier: float) -> None:
    for epsilon in (epsilon_pld, epsilon_rdp):
        with pytest.raises(ConfigError, match="noise multiplier"):
            epsilon([LaplaceEvent(multiplier)], 1e-5)
