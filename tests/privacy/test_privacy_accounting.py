"""Epsilon: reference values, two accountants, Laplace mechanisms, and monotonicity."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from twinproof.errors import ConfigError
from twinproof.privacy import accounting
from twinproof.privacy.accounting import (
    _FFT_ERROR,
    PLD_GRID,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    epsilon_pld,
    epsilon_rdp,
    spending,
)
from twinproof.privacy.mechanisms import Laplace, gaussian_delta, laplace_delta

MNIST = 60_000
# (sample rate, noise multiplier, steps, delta, epsilon by PLD, epsilon by RDP), to the digits given
REFERENCE = [
    (256 / MNIST, 1.1, 2350, 1e-5, 0.920200, 1.099707),
    (512 / MNIST, 1.0, 4680, 1e-5, 3.387909, 3.709942),
    (2048 / MNIST, 2.0, 1200, 1e-5, 2.657865, 2.897106),
    (0.01, 0.8, 1000, 1e-6, 3.706190, 4.293457),
    (0.1, 3.0, 500, 1e-5, 3.304290, 3.593332),
    (1.0, 10.0, 100, 1e-5, 4.377179, 4.728507),
]


@pytest.mark.parametrize(("rate", "multiplier", "steps", "delta", "pld", "rdp"), REFERENCE)
def test_reference_values(rate: float, multiplier: float, steps: int, delta: float, pld: float, rdp: float) -> None:
    events = [PoissonGaussianEvent(rate, multiplier, steps)]
    by_pld, by_rdp = epsilon_pld(events, delta), epsilon_rdp(events, delta)
    assert by_pld == pytest.approx(pld, abs=1.01e-6)
    assert by_rdp == pytest.approx(rdp, abs=1.01e-6)
    spent = spending(events, delta)
    assert by_pld <= spent.epsilon < by_pld + 1e-6
    assert by_rdp <= spent.epsilon_rdp < by_rdp + 1e-6
    assert spent.delta == delta


@functools.cache
def library_epsilons(events: tuple[Event, ...], delta: float) -> tuple[float, float]:
    """(PLD, RDP) by the library's own accountants, which keep nothing between two questions."""
    parts: list[Any] = []
    for event in events:
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        if not isinstance(event, PoissonGaussianEvent):
            laplace = isinstance(event, LaplaceEvent)
            parts.append(dp_accounting.LaplaceDpEvent(event.noise_multiplier) if laplace else gaussian)
        else:
            sampled = dp_accounting.PoissonSampledDpEvent(event.sample_rate, gaussian)
            parts.append(dp_accounting.SelfComposedDpEvent(sampled, event.steps))
    by_pld = PLDAccountant(value_discretization_interval=PLD_GRID).compose(dp_accounting.ComposedDpEvent(parts))
    by_rdp = RdpAccountant().compose(dp_accounting.ComposedDpEvent(parts))
    return by_pld.get_epsilon(delta - _FFT_ERROR), by_rdp.get_epsilon(delta)


REPORTED: tuple[tuple[Event, ...], ...] = (
    (PoissonGaussianEvent(0.02, 3.0, 1),),
    (PoissonGaussianEvent(0.02, 3.0, 500),),
    (PoissonGaussianEvent(0.02, 3.0, 100),),
    (PoissonGaussianEvent(0.02, 3.1, 100),),
    (PoissonGaussianEvent(0.03, 3.0, 100),),
    (GaussianEvent(5.0), PoissonGaussianEvent(0.02, 3.0, 100)),
    (PoissonGaussianEvent(1.0, 8.0, 1), GaussianEvent(8.0), PoissonGaussianEvent(0.02, 3.0, 100)),
)


def differing(reports: tuple[tuple[Event, ...], ...]) -> list[tuple[Event, ...]]:
    """The reports whose epsilon is not, to the bit, what the library's accountants say."""
    found = {events: (epsilon_pld(events, 1e-5), epsilon_rdp(events, 1e-5)) for events in reports}
    return [events for events, epsilons in found.items() if epsilons != library_epsilons(events, 1e-5)]


def test_what_is_kept_changes_no_bit() -> None:
    """Asked again, so that each answer comes from a step that others have used before."""
    assert differing(REPORTED) == []
    assert differing(REPORTED[::-1]) == []


@pytest.mark.parametrize("steps", [(PoissonGaussianEvent(0.02, 3.0, 500),), (GaussianEvent(5.0), LaplaceEvent(8.0))])
def test_laplace_beside_others_is_what_the_library_says(steps: tuple[Event, ...]) -> None:
    """Composition wins over adding pure epsilon here; the two differ by the FFT's rounding alone."""
    events = (LaplaceEvent(8.0), *steps)
    found = epsilon_pld(events, 1e-5), epsilon_rdp(events, 1e-5)
    assert found == pytest.approx(library_epsilons(events, 1e-5), rel=1e-9)
    assert found[0] < epsilon_pld(steps, 1e-5) + 1 / 8


@pytest.mark.parametrize("ignored", ["sample_rate", "noise_multiplier"])
def test_planted_cache_that_ignores_a_setting_is_seen(monkeypatch: pytest.MonkeyPatch, ignored: str) -> None:
    real = accounting._one_step_pld.__wrapped__
    kept: dict[Any, Any] = {}

    def one_step(step: Event, grid: float) -> Any:
        key = step.noise_multiplier if ignored == "sample_rate" else getattr(step, "sample_rate", 1.0)
        return kept.setdefault(key, real(step, grid))

    monkeypatch.setattr(accounting, "_one_step_pld", one_step)
    assert differing(REPORTED[2:5])


@pytest.mark.parametrize("wrong", [{"sample_rate": 0.0104}, {"noise_multiplier": 0.81}, {"steps": 990}])
def test_planted_other_mechanism_has_another_epsilon(wrong: dict[str, float]) -> None:
    """The table is sharp enough to see 4 % of the rate, 1 % of the noise, 1 % of the steps."""
    event = replace(PoissonGaussianEvent(0.01, 0.8, 1000), **wrong)  # type: ignore[arg-type]
    assert abs(epsilon_pld([event], 1e-6) - 3.706190) > 1e-4


Setting = tuple[float, float, int, float]
RATES, MULTIPLIERS, STEPS, DELTAS = (1e-5, 1e-2, 1.0), (20.0, 5.0, 1.0), (1, 2000, 100_000), (1e-4, 1e-10)
SMALL_NOISE: tuple[Setting, ...] = ((1.0, 0.3, 1, 1e-4), (1.0, 0.3, 100_000, 1e-10))
# The pessimistic grid rounds every step's loss up. Where all losses of a step are far below the grid (tiny rate, large noise)
# and steps are many, that adds up to more than Renyi's bound; only where both are small, and by no more than this.
SMALL_EPSILON, GRID_EXCESS = 0.2, 0.02


@pytest.fixture(scope="module")
def grid() -> dict[Setting, tuple[float, float]]:
    """(PLD, RDP) of each setting."""
    found = {}
    for rate, multiplier, steps, delta in (*itertools.product(RATES, MULTIPLIERS, STEPS, DELTAS), *SMALL_NOISE):
        events = [PoissonGaussianEvent(rate, multiplier, steps)]
        found[rate, multiplier, steps, delta] = epsilon_pld(events, delta), epsilon_rdp(events, delta)
    return found


def test_renyi_is_above_pld(grid: dict[Setting, tuple[float, float]]) -> None:
    assert all(math.isfinite(value) and value >= 0 for pair in grid.values() for value in pair)
    above = {setting: pair for setting, pair in grid.items() if pair[0] > pair[1]}
    assert all(pld < SMALL_EPSILON and pld - rdp < GRID_EXCESS for pld, rdp in above.values()), above
    assert len(above) <= len(grid) / 10


def test_pld_is_never_below_the_exact_gaussian(grid: dict[Setting, tuple[float, float]]) -> None:
    """At rate 1 the composition is one Gaussian, whose profile is known exactly: the bound holds and is close."""
    for (rate, multiplier, steps, delta), (pld, _) in grid.items():
        if rate == 1:
            sigma = multiplier / math.sqrt(steps)
            assert gaussian_delta(pld, sigma) <= delta
            if 0.1 < pld < 50:
                assert gaussian_delta(pld * (1 - 3e-3), sigma) > delta


@pytest.mark.parametrize("delta", [1e-10, 1e-11])
def test_rounding_of_the_composition_is_covered(monkeypatch: pytest.MonkeyPatch, delta: float) -> None:
    """Where the FFT's error counts: without its allowance the bound is below the truth, with it above."""
    events, sigma = [PoissonGaussianEvent(1.0, 5.0, 5000)], 5 / math.sqrt(5000)
    assert gaussian_delta(epsilon_pld(events, delta), sigma) <= delta
    monkeypatch.setattr("twinproof.privacy.accounting._FFT_ERROR", 0.0)
    assert gaussian_delta(epsilon_pld(events, delta), sigma) > delta


def not_monotone(grid: dict[Setting, tuple[float, float]], axis: int, values: tuple[float, ...]) -> list[Setting]:
    """Settings whose epsilon falls although the value at ``axis`` moved to the next more costly one."""
    found = []
    for setting, pair in grid.items():
        if setting[axis] not in values:
            continue
        for costlier in values[values.index(setting[axis]) + 1 :]:
            other = grid.get((*setting[:axis], costlier, *setting[axis + 1 :]))  # type: ignore[arg-type]
            if other is not None and any(b < a * (1 - 1e-9) - PLD_GRID for a, b in zip(pair, other, strict=True)):
                found.append(setting)
    return found


@pytest.mark.parametrize(("axis", "values"), [(0, RATES), (1, MULTIPLIERS), (2, STEPS), (3, DELTAS)])
def test_epsilon_grows_with_rate_steps_and_less_noise_or_delta(
    grid: dict[Setting, tuple[float, float]], axis: int, values: tuple[float, ...]
) -> None:
    assert not_monotone(grid, axis, values) == []
    assert not_monotone({setting: (-pld, -rdp) for setting, (pld, rdp) in grid.items()}, axis, values)  # able to fail


@pytest.mark.parametrize(
    ("events", "cost"),
    [
        ([], 0.0),
        ([PoissonGaussianEvent(0.1, 1.0, 0)], 0.0),
        ([PoissonGaussianEvent(0.0, 1.0, 100)], 0.0),
        ([PoissonGaussianEvent(0.0, 0.0, 100), PoissonGaussianEvent(0.5, 0.0, 0)], 0.0),
        ([GaussianEvent(0.0)], math.inf),
        ([PoissonGaussianEvent(0.01, 0.0, 1)], math.inf),
        ([GaussianEvent(1.0), PoissonGaussianEvent(1.0, 0.0, 5)], math.inf),
        ([PoissonGaussianEvent(0.01, 1.0, 10), LaplaceEvent(0.0)], math.inf),
    ],
)
def test_nothing_done_costs_nothing_and_no_noise_has_no_epsilon(events: list[Event], cost: float) -> None:
    spent = spending(events, 1e-5)
    assert spent.epsilon == spent.epsilon_rdp == cost


@pytest.mark.parametrize("first", [GaussianEvent(5.0), LaplaceEvent(2.0), LaplaceEvent(30.0)])
def test_mixed_events_compose(first: GaussianEvent | LaplaceEvent) -> None:
    """More than either alone, at most their sum, the same in any order and cut into any blocks."""
    training = PoissonGaussianEvent(0.01, 1.0, 1000)
    for epsilon in (epsilon_pld, epsilon_rdp):
        alone = epsilon([first], 1e-5), epsilon([training], 1e-5)
        both = epsilon([first, training], 1e-5)
        own = 1 / first.noise_multiplier if isinstance(first, LaplaceEvent) else alone[0]
        assert max(alone) < both <= math.nextafter(alone[1] + own, math.inf)
        assert both == pytest.approx(epsilon([training, first], 1e-5), rel=1e-6)
        blocks: list[Event] = [replace(training, steps=300), first, replace(training, steps=700)]
        assert both == pytest.approx(epsilon(blocks, 1e-5), abs=2e-3)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (PoissonGaussianEvent(1.5, 1.0, 1), "sample_rate cannot"),
        (PoissonGaussianEvent(0.1, -1.0, 1), "noise_multiplier cannot"),
        (PoissonGaussianEvent(0.1, math.nan, 1), "noise_multiplier cannot"),
        (PoissonGaussianEvent(0.1, 1.0, -1), "steps cannot"),
        (GaussianEvent(math.inf), "noise_multiplier cannot"),
        (LaplaceEvent(-1.0), "noise_multiplier cannot"),
        (LaplaceEvent(math.nan), "noise_multiplier cannot"),
        # 1 / multiplier would overflow.
        (LaplaceEvent(5e-324), r"noise_multiplier cannot(.|\n)*LaplaceEvent"),
        (LaplaceEvent(9.9e-301), r"noise_multiplier cannot(.|\n)*LaplaceEvent"),
    ],
)
def test_events_and_deltas_without_meaning_are_refused(event: Event, message: str) -> None:
    for epsilon in (epsilon_pld, epsilon_rdp):
        with pytest.raises(ConfigError, match=message):
            epsilon([event], 1e-5)
        for delta in (0.0, 1.0, -1.0, math.nan):
            with pytest.raises(ConfigError, match="delta cannot be used"):
                epsilon([GaussianEvent(1.0)], delta)


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), [one[:4] for one in REFERENCE[:3]])
def test_a_record_replaced_by_nothing_costs_what_both_accountants_say_of_a_special_record(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    """``REPLACE_SPECIAL`` is dp-accounting's name for it; replacing a record by another one costs more, and is not promised."""
    special = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    event = dp_accounting.SelfComposedDpEvent(sampled, steps)
    ours = PoissonGaussianEvent(rate, noise, steps)
    pld = PLDAccountant(special, value_discretization_interval=PLD_GRID).compose(event).get_epsilon(delta)
    rdp = RdpAccountant(neighboring_relation=special).compose(event).get_epsilon(delta)
    assert epsilon_pld([ours], delta) == pytest.approx(pld, rel=1e-6)
    assert epsilon_rdp([ours], delta) == pytest.approx(rdp, rel=1e-6)


LAPLACE_MULTIPLIERS = (0.1, 1 / 1.00005, 1.0, 3.0, 10.0, 20_000.0)
LAPLACE_DELTAS = (1e-9, 1e-5, 1e-2)
SOME_STEPS = PoissonGaussianEvent(0.01, 1.0, 200)


@pytest.mark.parametrize(("multiplier", "delta"), list(itertools.product(LAPLACE_MULTIPLIERS, LAPLACE_DELTAS)))
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


@pytest.mark.parametrize("multiplier", [1e-300, 1e-100, 1e-12, 1e-9])
def test_noise_that_hides_nothing_is_still_counted(multiplier: float) -> None:
    cases: list[list[Event]] = [[LaplaceEvent(multiplier)], [LaplaceEvent(multiplier), LaplaceEvent(multiplier), SOME_STEPS]]
    for events in cases:
        pure = pure_sum([one.noise_multiplier for one in events if isinstance(one, LaplaceEvent)])
        for accountant in (epsilon_pld, epsilon_rdp):
            assert 0.99 * pure < accountant(events, 1e-5) < 1.01 * pure + 100


MANY = [[3.0] * 20, [0.7, 1.3, 17.0, 40.0], [20_000.0] * 30, [1.0], [1 / 3] * 3]


@pytest.mark.parametrize("multipliers", MANY)
def test_pure_epsilon_is_never_exceeded(multipliers: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    events = [LaplaceEvent(one) for one in multipliers]
    for delta in (1e-300, 1e-12, 1e-5):
        assert epsilon_pld(events, delta) <= pure_sum(multipliers)
        assert epsilon_rdp(events, delta) <= pure_sum(multipliers)
    if multipliers == MANY[0]:
        assert epsilon_pld(events, 1e-5) < 0.95 * 20 / 3, "composition is worth its delta"
    if multipliers == MANY[2]:
        # Losses of 1/20,000 are rounded up to the grid's 1/10,000: without the pure bound thirty of them count a third more.
        monkeypatch.setattr(accounting, "_without_laplace", lambda events: (0.0, list(events)))
        assert epsilon_pld(events, 1e-12) > 1.3 * pure_sum(multipliers)


def test_planted_forgotten_event_and_confused_scale_are_seen() -> None:
    """A scale of 12 on a sensitivity of 4 is a multiplier of 3: taken for 12, or left out, epsilon is far too small."""
    truth = epsilon_pld([LaplaceEvent(3.0), SOME_STEPS], 1e-5)
    scale_for_multiplier = epsilon_pld([LaplaceEvent(12.0), SOME_STEPS], 1e-5)
    forgotten = epsilon_pld([SOME_STEPS], 1e-5)
    gaussian = epsilon_pld([GaussianEvent(3.0)], 1e-5)
    assert forgotten < scale_for_multiplier < truth - 0.1
    assert abs(gaussian - epsilon_pld([LaplaceEvent(3.0)], 1e-5)) > 0.1, "nor is it a Gaussian of that multiplier"
