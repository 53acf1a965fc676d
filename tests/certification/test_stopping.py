"""Looks fixed before any draw, stopping early within alpha, and settings that can certify nothing.

Votes are simulated as binomials and go through the real looks and decisions; the real sampler repeats the main test at a
smaller size. The inputs lie exactly where a false certificate is most likely: on the boundary of the target radius.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
import torch
from certify_oracles import Affine, plain_rule, rule_for
from numpy.typing import NDArray
from scipy.stats import binom, norm
from torch import Tensor, nn

from twinproof.certification.grid_noise import input_noise
from twinproof.certification.method import Sampling, Schedule
from twinproof.certification.radius import Certified, Estimate, estimate, largest_radius, stopping_rule
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import VoteCounter
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.runs.records import ABSTAIN, Look


@pytest.mark.parametrize(
    ("n", "draws"),
    [
        (1, [1]),
        (124, [124]),
        (125, [125]),
        (126, [125, 126]),
        (1000, [125, 250, 500, 1000]),
        (10_000, [125, 250, 500, 1000, 2000, 4000, 8000, 10_000]),
        (2300, [125, 250, 500, 1000, 2000, 2300]),
    ],
)
def test_looks_double_up_to_n(n: int, draws: list[int]) -> None:
    assert [look.draws for look in Schedule.doubling(n, 0.001).looks] == draws


@pytest.mark.parametrize("n", [1, 200, 10_000, 10**6, 10**9])
@pytest.mark.parametrize("alpha", [0.001, 0.05, 1e-12, 1 / 3, 0.999])
def test_the_shares_add_up_to_alpha(n: int, alpha: float) -> None:
    looks = Schedule.doubling(n, alpha).looks
    total = sum(Fraction(look.alpha) for look in looks)
    assert abs(total / Fraction(alpha) - 1) < Fraction(1, 10**14)
    assert looks[-1].alpha == (alpha / 2 if len(looks) > 1 else alpha)


@pytest.mark.parametrize(
    "looks",
    [
        [(100, 0.001), (200, 0.001)],  # plain bounds at every look
        [(100, 0.0005), (200, 0.000501)],
        [(100, 0.0), (200, 0.001)],
        [(100, -0.001), (200, 0.001)],
        [(100, math.nan)],
    ],
)
def test_looks_that_spend_more_than_alpha_are_refused(looks: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="spend more than the failure probability"):
        Schedule(tuple(Look(*look) for look in looks), alpha=0.001)


@pytest.mark.parametrize("draws", [[], [0], [200, 100], [100, 100]])
def test_looks_in_no_order_are_refused(draws: list[int]) -> None:
    with pytest.raises(ConfigError, match="in no order"):
        Schedule(tuple(Look(count, 1e-6) for count in draws), alpha=0.001)


def test_without_a_target_there_is_one_look() -> None:
    assert Sampling(n=10_000).schedule.looks == (Look(10_000, 0.001),)
    assert len(Sampling(n=10_000, target_radius=0.25).schedule.looks) == 8


@pytest.mark.parametrize("target", [0.0, -0.25, math.nan, math.inf])
def test_a_target_that_is_no_radius_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="target radius cannot be used"):
        Sampling(target_radius=target)


SIGMA, TAU = 0.5, 0.0
RULE = plain_rule(SIGMA, TAU)


@dataclass(frozen=True)
class Coins(VoteCounter):
    """A counter of simulated votes: each draw falls on the class with probability ``p``, whatever the input."""

    p: float = 0.5
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(17))

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        votes = torch.from_numpy(self.generator.binomial(draws - after, self.p, size=len(indices)))
        return torch.stack((votes, draws - after - votes), dim=1)


def _bound(made: Estimate, sampling: Sampling) -> Certified:
    """What each input's votes for class 0 certify at the look at which it stopped."""
    inputs = len(made.stopped)
    whole, top = Certified(np.zeros(inputs, dtype=np.bool_), np.zeros(inputs)), np.zeros(inputs, dtype=np.int64)
    for number, look in enumerate(sampling.schedule.looks):
        found = RULE.certified(made.evidence(top, number, look, RULE), look.alpha)
        here = made.stopped == number
        whole.certified[here], whole.radii[here] = found.certified, found.radii
    return whole


def _simulate(p: float, sampling: Sampling, inputs: int) -> tuple[Estimate, Certified]:
    counter = Coins(torch.nn.Identity(), input_noise(SIGMA, 255), 2, Key.from_seed(0), 1, p=p)
    nothing = torch.zeros(inputs, 1)
    rule, top = stopping_rule(sampling, RULE), torch.zeros(inputs, dtype=torch.int64)
    made = estimate(counter, rule, list(range(inputs)), nothing, top)
    return made, _bound(made, sampling)


def _draws(made: Estimate, sampling: Sampling) -> NDArray[np.int64]:
    return np.array([look.draws for look in sampling.schedule.looks])[made.stopped]


def _false_certificates(alpha: float, inputs: int, true_radius: float, target: float, n: int = 10_000) -> float:
    """Share of inputs that are certified beyond their true radius."""
    p = float(norm.cdf(true_radius / SIGMA))
    _, bound = _simulate(p, Sampling(n=n, alpha=alpha, target_radius=target), inputs)
    return float((bound.radii > true_radius).mean())


def _plain_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: every look spends all of alpha."""
    honest = Schedule.doubling

    def plain(n: int, alpha: float) -> Schedule:
        looks = tuple(Look(look.draws, alpha) for look in honest(n, alpha).looks)
        return Schedule(looks, alpha * len(looks))

    monkeypatch.setattr(Schedule, "doubling", plain)


def test_false_certificates_at_the_boundary_stay_below_alpha() -> None:
    """The rate is about 0.037: the margin to the limit is more than 8 standard errors."""
    rate = _false_certificates(0.05, 40_000, true_radius=0.25 - 1e-7, target=0.25)
    assert 0.01 < rate < 0.045


def test_planted_plain_bounds_at_every_look_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _plain_looks(monkeypatch)
    assert _false_certificates(0.05, 40_000, true_radius=0.25 - 1e-7, target=0.25) > 0.1


def _exact_rate(sampling: Sampling, p: float) -> float:
    """The probability that an input is certified at the target: the law of the votes, carried from look to look."""
    rule = stopping_rule(sampling, RULE)
    law, seen, certified = np.ones(1), 0, 0.0
    for look, enough, hope in zip(rule.schedule.looks, rule.enough, rule.hope, strict=True):
        more = look.draws - seen
        law, seen = np.convolve(law, binom.pmf(np.arange(more + 1), more, p)), look.draws
        certified += float(law[enough:].sum())
        law[enough:] = 0
        law[:hope] = 0
    return certified


SETTINGS = [(0.05, 1000, 0.25), (0.001, 10_000, 0.25), (0.001, 10_000, 0.5), (0.001, 2300, 1.0), (1e-6, 4000, 0.25)]


@pytest.mark.parametrize(("alpha", "n", "target"), SETTINGS)
def test_the_exact_rate_at_the_boundary_is_within_alpha(alpha: float, n: int, target: float) -> None:
    rate = _exact_rate(Sampling(n=n, alpha=alpha, target_radius=target), float(norm.cdf((target - 1e-9) / SIGMA)))
    assert 0.3 * alpha < rate <= alpha


@pytest.mark.parametrize(("alpha", "n", "target"), SETTINGS)
def test_planted_plain_bounds_exceed_alpha_exactly(
    alpha: float, n: int, target: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plain_looks(monkeypatch)
    assert _exact_rate(Sampling(n=n, alpha=alpha, target_radius=target), float(norm.cdf((target - 1e-9) / SIGMA))) > 1.3 * alpha


def test_the_simulation_agrees_with_the_exact_rate() -> None:
    sampling, p = Sampling(n=1000, alpha=0.05, target_radius=0.25), float(norm.cdf(0.5)) + 0.03
    exact = _exact_rate(sampling, p)
    simulated = float((_simulate(p, sampling, 20_000)[1].radii >= 0.25).mean())
    assert abs(simulated - exact) < 5 * np.sqrt(exact * (1 - exact) / 20_000)


@pytest.mark.parametrize("true_radius", [0.02, 0.1, 0.2, 0.24, 0.26, 0.3, 0.5, 1.0])
def test_radii_of_inputs_off_the_boundary_hold_too(true_radius: float) -> None:
    """Those that stopped beyond the target, and those that gave up with a smaller radius."""
    assert _false_certificates(0.05, 20_000, true_radius, target=0.25) < 0.05


# Between two points of the noise grid (steps of 1/128), so that rounding to the grid moves no vote across the boundary.
DISTANCE, OVER = 32.5 / 128, 0.253907


def _sampled_rate(inputs: int = 4000, alpha: float = 0.05) -> float:
    """Share certified at a radius just above the exact one, by the real sampler."""
    model = Affine(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([DISTANCE - 0.5, 0.5 - DISTANCE]))
    sampling = Sampling(n0=50, n=1000, alpha=alpha, target_radius=OVER)
    made = smooth(model, SIGMA, levels=16).certify(np.full((inputs, 2), 8), sampling=sampling, key=Key.from_seed(3))
    assert len({one.draws for one in made}) == 4, "some stop at every look"
    return sum(one.radius >= OVER for one in made) / inputs


def test_the_real_sampler_stays_below_alpha() -> None:
    assert 0.005 < _sampled_rate() < 0.05


def test_planted_plain_bounds_are_caught_with_the_real_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    _plain_looks(monkeypatch)
    assert _sampled_rate() > 0.075


@pytest.mark.parametrize(
    ("p", "certified"), [(0.999, 1.0), (0.95, 1.0), (0.3, 0.0), (0.5, 0.0)], ids=["sure", "clear", "lost", "a coin"]
)
def test_easy_inputs_are_at_least_ten_times_cheaper(p: float, certified: float) -> None:
    sampling = Sampling(target_radius=0.25)
    made, bound = _simulate(p, sampling, 5000)
    assert (bound.radii >= 0.25).mean() == certified
    assert (_draws(made, sampling).mean() + sampling.n0) * 10 <= sampling.n + sampling.n0


def test_hard_inputs_get_all_draws_and_no_more() -> None:
    sampling = Sampling(target_radius=0.25)
    made, _ = _simulate(float(norm.cdf(0.5)) + 0.012, sampling, 2000)
    draws = _draws(made, sampling)
    assert draws.max() == sampling.n
    assert draws.mean() > 0.5 * sampling.n


@pytest.mark.parametrize(("target", "p"), [(0.25, 0.73), (0.5, 0.873), (1.0, 0.99), (1.4, 0.9999)])
def test_what_the_fixed_procedure_is_sure_to_certify_is_not_lost(target: float, p: float) -> None:
    fixed, sequential = Sampling(), Sampling(target_radius=target)
    assert (_simulate(p, fixed, 3000)[1].radii >= target).all()
    assert (_simulate(p, sequential, 3000)[1].radii >= target).mean() > 0.998


def test_half_of_alpha_for_the_last_look_loses_less_than_an_even_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of docs/decisions/0006-sequential-certification.md: five standard errors above the boundary of 0.25."""
    boundary = float(norm.cdf(0.5))
    p, honest, sampling = (
        boundary + 5 * np.sqrt(boundary * (1 - boundary) / 10_000),
        Schedule.doubling,
        Sampling(target_radius=0.25),
    )
    half = _exact_rate(sampling, p)
    monkeypatch.setattr(Schedule, "doubling", Schedule.single)
    fixed = _exact_rate(sampling, p)

    def even(n: int, alpha: float) -> Schedule:
        looks = honest(n, alpha).looks
        return Schedule(tuple(Look(look.draws, alpha / len(looks)) for look in looks), alpha)

    monkeypatch.setattr(Schedule, "doubling", even)
    assert [f"{100 * rate:.1f}" for rate in (fixed, half, _exact_rate(sampling, p))] == ["97.4", "96.0", "92.2"]


def test_without_a_target_nothing_stops_early() -> None:
    rule = stopping_rule(Sampling(n=500), RULE)
    assert [look.draws for look in rule.schedule.looks] == [500]
    assert rule.stops(0, np.arange(501)).all()


@pytest.mark.parametrize("target", [0.05, 0.25, 1.0, 1.5])
def test_thresholds_are_those_of_the_bounds(target: float) -> None:
    """One vote less than enough does not reach the target, enough does; hope ends only where the target is out of sight."""
    sampling = Sampling(n=10_000, target_radius=target)
    rule = stopping_rule(sampling, RULE)
    last = len(rule.schedule.looks) - 1
    for number, look in enumerate(rule.schedule.looks):
        votes = np.arange(look.draws + 1)
        both = np.stack((votes, look.draws - votes), axis=1)
        radii = _bound(Estimate(both, both, np.full(len(votes), number)), sampling).radii
        assert ((radii >= target) == (votes >= rule.enough[number])).all()
        if number < last:
            assert (rule.stops(number, votes) == ((radii >= target) | (votes < rule.hope[number]))).all()
            assert rule.hope[number] <= rule.enough[number]
    assert rule.stops(last, np.arange(3)).all()


def test_an_input_that_gave_up_keeps_the_radius_it_has_or_abstains() -> None:
    """Inputs at several distances and a target that most of them miss."""
    model = Affine(np.array([[1.0], [-1.0]]), np.array([-0.1, 0.1]))
    sampling = Sampling(n0=50, n=10_000, target_radius=0.6)
    stored = np.repeat([[2], [6], [9], [16]], 5, axis=0)  # distances 0.025, 0.275, 0.4625, 0.9
    made = smooth(model, SIGMA, levels=16).certify(stored, sampling=sampling, key=Key.from_seed(1))
    near, middle, edge, far = (made[at : at + 5] for at in range(0, 20, 5))
    assert all(one.prediction == ABSTAIN and one.radius == 0 and one.draws < sampling.n for one in near)
    assert any(0 < one.radius < 0.275 for one in middle)
    assert all(0 < one.radius < 0.6 for one in edge)
    assert all(one.radius >= 0.6 and one.draws < 1000 for one in far)


@pytest.mark.parametrize(("n", "target"), [(1000, 1.23), (10_000, 1.6)])
def test_a_target_out_of_reach_is_refused(n: int, target: float) -> None:
    rule = rule_for(input_noise(SIGMA, 255), 4)
    with pytest.raises(ConfigError, match="out of reach") as refused:
        largest_radius(Sampling(n=n, target_radius=target), rule)
    assert f"n={n}" in refused.value.wanted
    assert largest_radius(Sampling(n=n, target_radius=target - 0.1), rule) < target


REFERENCES = [(1_000, 2.463263), (10_000, 3.198578), (100_000, 3.811457)]


@pytest.mark.parametrize("sigma", [0.25, 1.0])
@pytest.mark.parametrize(("n", "factor"), REFERENCES)
def test_reference_values(n: int, factor: float, sigma: float) -> None:
    radius = largest_radius(Sampling(n=n), rule_for(input_noise(sigma, 255), 64))
    assert radius <= sigma * (factor + 5e-7)
    assert radius >= sigma * factor - 1e-4


def test_a_larger_dimension_never_gives_a_larger_radius() -> None:
    noise = input_noise(0.5, 255)
    radii = [largest_radius(Sampling(), rule_for(noise, dimension)) for dimension in (1, 784, 3072, 150_528, 10**9)]
    assert radii == sorted(radii, reverse=True)
    assert radii[-1] < radii[0]


def _needed(n: int, alpha: float, sigma: float) -> int:
    with pytest.raises(ConfigError, match="can never certify anything") as refused:
        largest_radius(Sampling(n=n, alpha=alpha), rule_for(input_noise(sigma, 255), 784))
    found = re.search(r"n of at least (\d+)", refused.value.wanted)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("n", "alpha", "sigma", "needed"),
    [
        (9, 0.001, 0.25, 10),
        (1, 0.001, 0.25, 10),
        (1, 0.5, 0.25, 2),  # alpha^(1/n) is exactly 1/2 at n = 1
        (3, 0.125, 0.25, 4),
        (1, 2.0**-20, 1.0, 21),
        (4, 0.05, 0.25, 5),
        (9, 0.001, 1e-4, 11),  # n = 10 leaves 0.0000003, which is rounded down to nothing
    ],
)
def test_what_can_never_certify_is_refused_with_the_least_n_that_can(n: int, alpha: float, sigma: float, needed: int) -> None:
    assert _needed(n, alpha, sigma) == needed
    rule = rule_for(input_noise(sigma, 255), 784)
    assert largest_radius(Sampling(n=needed, alpha=alpha), rule) > 0
    with pytest.raises(ConfigError):
        largest_radius(Sampling(n=needed - 1, alpha=alpha), rule)


def test_certify_refuses_before_it_draws() -> None:
    class Explodes(nn.Module):
        def forward(self, x: object) -> object:
            raise AssertionError("the network was run")

    with pytest.raises(ConfigError, match="at least 10"):
        smooth(Explodes(), 0.25).certify(np.zeros((1, 4), dtype=np.uint8), sampling=Sampling(n=9))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n", 0), ("n0", 0), ("n", -5), ("n", 10**12 + 1), ("n0", 2**64), ("alpha", 0.0), ("alpha", 1.0), ("alpha", -1.0)],
)
def test_settings_out_of_range(setting: str, value: float) -> None:
    with pytest.raises(ConfigError) as refused:
        Sampling(**{setting: value})  # type: ignore[arg-type]
    assert refused.value.where == setting
    assert refused.value.got == str(value)


def test_alpha_not_a_number() -> None:
    with pytest.raises(ConfigError, match="alpha is not a probability"):
        Sampling(alpha=float("nan"))
