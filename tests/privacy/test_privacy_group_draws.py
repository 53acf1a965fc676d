"""Why the sound StoBatch draws records and not trainers: a draw of groups hides nobody in a group (docs/decisions/0015)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from twinproof.privacy.accounting import PoissonGaussianEvent, epsilon_pld

NOISE = 2.0


def gaussian_delta(epsilon: float, sensitivity: float) -> float:
    """Of the Gaussian mechanism with deviation 1."""
    low, high = -sensitivity / 2, sensitivity / 2
    return float(norm.cdf(high - epsilon / sensitivity) - math.exp(epsilon) * norm.cdf(low - epsilon / sensitivity))


def one_step_delta(epsilon: float, rate: float, others: float) -> float:
    """Of a sum to which a group comes with probability ``rate``: ``others`` is what the rest of the group adds, 1 the record.

    Without others it is the Poisson draw of a record. By numerical integration, the record being there against not.
    """
    points = np.linspace(-40.0, others + 40.0, 2_000_001)
    drawn, there, absent = (norm.pdf(points, place, NOISE) for place in (0.0, others + 1.0, others))
    larger = (1 - rate) * drawn + rate * there - math.exp(epsilon) * ((1 - rate) * drawn + rate * absent)
    return float(np.clip(larger, 0, None).sum() * (points[1] - points[0]))


@pytest.mark.parametrize(("rate", "epsilon"), [(0.1, 0.2), (0.2, 0.5), (0.1, 1.0)])
def test_the_rest_of_a_group_gives_away_that_it_was_drawn(rate: float, epsilon: float) -> None:
    """Amplified where the record comes alone; with a group around it delta is divided at best, and epsilon stays."""
    by_record = one_step_delta(epsilon, rate, others=0.0)
    by_group = one_step_delta(epsilon, rate, others=60.0)
    assert by_record == pytest.approx(rate * gaussian_delta(math.log1p(math.expm1(epsilon) / rate), 1 / NOISE), rel=1e-4)
    assert by_group == pytest.approx(rate * gaussian_delta(epsilon, 1 / NOISE), rel=1e-4)
    assert by_group > 2 * by_record


def epsilon_by_group(rate: float, steps: int, delta: float, noise: float) -> float:
    """Exact where draws are given away: a record takes part in a binomial number of steps, each without amplification."""
    times = np.arange(1, steps + 1)
    weights = binom.pmf(times, steps, rate)

    def excess(epsilon: float) -> float:
        parts = (
            weight * gaussian_delta(epsilon, math.sqrt(count) / noise) for count, weight in zip(times, weights, strict=True)
        )
        return sum(parts) - delta

    return float(brentq(excess, 1e-3, 200.0))


@pytest.mark.parametrize(("rate", "steps", "by_record", "by_group"), [(2 / 11, 400, 9.9, 28.2), (0.04, 1000, 2.9, 19.6)])
def test_the_numbers_of_the_decision(rate: float, steps: int, by_record: float, by_group: float) -> None:
    records = epsilon_pld([PoissonGaussianEvent(rate, NOISE, steps)], 1e-5)
    groups = epsilon_by_group(rate, steps, 1e-5, NOISE)
    assert (_up(records), _up(groups)) == (by_record, by_group)


def _up(epsilon: float) -> float:
    """To one place, upwards."""
    return math.ceil(epsilon * 10) / 10


def test_where_every_step_takes_everybody_they_are_the_same() -> None:
    assert epsilon_by_group(1.0, 20, 1e-5, 5.0) == pytest.approx(
        epsilon_pld([PoissonGaussianEvent(1.0, 5.0, 20)], 1e-5), rel=1e-3
    )
