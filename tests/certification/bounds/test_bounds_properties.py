"""What holds for every bound at every pair of scores, and the wrong bounds that these checks see."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtri

from twinproof.certification.bounds import HGM, SMALLEST_DELTA, HGMComplement, PixelDPGaussian, RobustnessBound
from twinproof.certification.catalogue import find_bound
from twinproof.certification.confidence import Evidence, RunnerUp, find_confidence
from twinproof.layers.noise import Law

Reach = Callable[[float, float], float]
SOUND = [
    *(find_bound(name, Law.GAUSSIAN) for name in ("tight", "hgm", "hgm-complement", "pixeldp")),
    *(find_bound(name, Law.LAPLACE) for name in ("tight", "pixeldp")),
]
IDS = [f"{bound.name}-{bound.law}" for bound in SOUND]
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
# Logarithms of probabilities, so that nearly certain classifiers are drawn as often as undecided ones.
tails = st.floats(min_value=-10, max_value=-0.01).map(lambda exponent: 10.0**exponent)
probabilities = st.one_of(tails, tails.map(lambda tail: 1 - tail))
each_bound = pytest.mark.parametrize("bound", SOUND, ids=IDS)


def _at_most_tight(reach: Reach, law: Law, low: float, high: float) -> bool:
    return reach(low, high) <= float(find_bound("tight", law).reach(low, high)) * (1 + 1e-12)


@each_bound
@PROPERTY
@given(first=probabilities, second=probabilities)
def test_no_sound_bound_exceeds_the_tight_one(bound: RobustnessBound, first: float, second: float) -> None:
    low, high = max(first, second), min(first, second)
    reach, swapped = bound.reach([low, high], [high, low]).tolist()
    assert _at_most_tight(lambda *_: reach, bound.law, low, high)
    assert reach >= 0 == swapped


@each_bound
@PROPERTY
@given(first=probabilities, second=probabilities, third=probabilities)
def test_grows_with_low_and_falls_with_high(bound: RobustnessBound, first: float, second: float, third: float) -> None:
    least, middle, most = sorted((first, second, third))
    whole, lower_low, higher_high = bound.reach([most, middle, most], [least, least, middle])
    assert max(lower_low, higher_high) <= whole * (1 + 1e-9) + 1e-12


@PROPERTY
@given(first=probabilities, second=probabilities)
def test_the_complement_never_costs(first: float, second: float) -> None:
    low, high = max(first, second), min(first, second)
    assert float(HGMComplement().reach(low, high)) >= float(HGM().reach(low, high)) >= 0


@pytest.mark.parametrize("bound", [HGM(), HGMComplement(), PixelDPGaussian()], ids=lambda bound: str(bound.name))
def test_the_search_finds_the_best_delta(bound: HGM | PixelDPGaussian) -> None:
    """Against 400 deltas for each pair."""
    for low, high in [(0.51, 0.49), (0.9, 0.1), (0.6, 1e-6), (0.99999, 1e-5), (0.3, 0.2)]:
        deltas = np.exp(np.linspace(math.log(SMALLEST_DELTA), math.log((low - high) / 2), 400, endpoint=False))
        best = max(float(type(bound)(delta=float(delta)).reach(low, high)) for delta in deltas)
        found = float(bound.reach(low, high))
        assert found >= best * (1 - 1e-12)


def test_elementwise_whatever_the_shape() -> None:
    low = np.array([[0.9, 0.6, 0.9], [0.4, np.nan, 0.99]])
    for bound in SOUND:
        together = bound.reach(low, 0.1)
        alone = [[float(bound.reach(value, 0.1)) for value in row] for row in low]
        assert together.tolist() == alone
        assert together[1, 1] == 0
        assert bound.reach(np.zeros(0), np.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.5, 0.5), (0.2, 0.7), (-0.1, -0.2), (1.3, 1.2), (0.9, np.nan), (np.nan, 0.1), (np.nextafter(0.5, 1), 0.5)],
)
def test_nothing_where_nothing_is_decided(low: float, high: float) -> None:
    for bound in SOUND:
        assert float(bound.reach(low, high)) <= 1e-15


def test_a_class_that_cannot_win_is_out_of_reach() -> None:
    for law in Law:
        assert float(find_bound("tight", law).reach(1.0, 0.0)) == math.inf
        assert float(find_bound("tight", law).reach(0.7, -0.1)) == math.inf
    assert 0 < float(HGM().reach(1.0, 0.0)) < math.inf


def _quantile_of_the_wrong_side(low: float, high: float) -> float:
    return float(ndtri(1 - high))


def _half_forgotten(low: float, high: float) -> float:
    return float(ndtri(low) - ndtri(high))


def _extra_epsilon(low: float, high: float) -> float:
    return float(find_bound("published", Law.GAUSSIAN).reach(low, high))


def _classic_beyond_epsilon_one(low: float, high: float) -> float:
    epsilon: NDArray[np.float64] = np.log(np.asarray(low / high)) / 2
    return float(epsilon / math.sqrt(2 * math.log(1.25 / min(0.4, (low - high) / 2))))


@pytest.mark.parametrize("planted", [_quantile_of_the_wrong_side, _half_forgotten, _extra_epsilon, _classic_beyond_epsilon_one])
def test_planted_bounds_are_caught(planted: Reach) -> None:
    pairs = [(0.6, 0.3), (0.9, 0.1), (0.9999, 1e-4), (1 - 1e-9, 1e-9)]
    assert not all(_at_most_tight(planted, Law.GAUSSIAN, low, high) for low, high in pairs)


@pytest.mark.parametrize("n", [1000, 10_000])
def test_for_every_number_of_votes_the_bounds_are_in_order(n: int) -> None:
    """A radius is a function of the votes, and every test image of every data set has one of these numbers of them."""
    evidence = Evidence.of_votes(n, np.arange(n + 1, dtype=np.int64))
    low, high = find_confidence("clopper-pearson").bounds(evidence, 0.001, 10, RunnerUp.COMPLEMENT)
    reaches = [find_bound(name, Law.GAUSSIAN).reach(low, high) for name in ("tight", "hgm-complement", "hgm", "pixeldp")]
    tight, complement, hgm, pixeldp = reaches
    assert bool((complement <= tight).all())
    assert bool((hgm <= complement).all())
    assert bool((hgm >= 0).all())
    assert bool((pixeldp <= tight).all())
    answered = low > high
    assert bool((hgm[answered] > 0).all())
    assert bool((hgm[answered] < tight[answered]).all()), "equal everywhere would show that nothing was compared"
