"""The looks are fixed before the draws, grow, and never spend more than alpha."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from twinproof.certification.method import Sampling, Schedule
from twinproof.errors import ConfigError
from twinproof.runs.certificates import Look


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
