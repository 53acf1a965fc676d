"""Every bound at every pair of scores: properties, references of 40 digits, and isRobust to the last float."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from bounds_oracles import exact_output_privacy, exact_tight
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from twinproof.certification.bounds import (
    HGM,
    SMALLEST_DELTA,
    HGMComplement,
    PixelDPGaussian,
    RobustnessBound,
    TightGaussian,
    TightLaplace,
    is_robust,
    largest_size,
)
from twinproof.certification.catalogue import bound_names, find_bound
from twinproof.certification.confidence import Evidence, RunnerUp, after_tau, clopper_pearson_lower, find_confidence
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.layers.noise import Law
from twinproof.privacy.mechanisms import extended_gaussian_sigma

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


# low, high: tight, classic at delta 1e-5, HGM at delta 1e-5, classic at the best delta, HGM at the best delta
TABLE = [
    (0.6, 0.4, 0.253347, 0.041842, 0.042476, 0.059224, 0.061581),
    (0.7, 0.3, 0.524401, 0.087440, 0.088341, 0.135036, 0.139969),
    (0.9, 0.1, 1.281552, 0.206407, 0.225854, 0.390267, 0.390301),
    (0.9, 0.05, 1.463203, 0.206407, 0.295006, 0.479988, 0.502174),
    (0.99, 0.01, 2.326348, 0.206407, 0.461177, 0.554867, 0.741032),
    (0.999, 0.001, 3.090232, 0.206407, 0.678374, 0.568911, 0.977621),
    (0.9999, 0.0001, 3.719016, 0.206407, 0.886447, 0.570313, 1.164144),
]
COLUMNS: list[RobustnessBound] = [TightGaussian(), PixelDPGaussian(delta=1e-5), HGM(delta=1e-5), PixelDPGaussian(), HGM()]


@pytest.mark.parametrize("column", range(5), ids=["tight", "classic 1e-5", "hgm 1e-5", "classic best", "hgm best"])
def test_reference_table(column: int) -> None:
    low, high, *values = np.array(TABLE).T
    np.testing.assert_allclose(COLUMNS[column].reach(low, high), values[column], rtol=0, atol=5.1e-7)


@pytest.mark.parametrize(
    ("low", "high", "complement", "scores"),
    [(0.9, 0.1, 1.609438, 1.098612), (0.6, 0.4, 0.223144, 0.202733), (0.99, 0.01, 3.912023, 2.297560)],
)
def test_laplace_reference(low: float, high: float, complement: float, scores: float) -> None:
    assert float(find_bound("tight", Law.LAPLACE).reach(low, high)) == pytest.approx(complement, abs=5e-7)
    assert float(find_bound("pixeldp", Law.LAPLACE).reach(low, high)) == pytest.approx(scores, abs=5e-7)


def test_laplace_uses_the_scores_where_they_reach_farther() -> None:
    """Both scores small: the complement says little."""
    assert float(TightLaplace().reach(0.3, 0.01)) == pytest.approx(np.log(30) / 2, rel=1e-12)


def test_complement_reference() -> None:
    assert float(HGMComplement(delta=1e-5).reach(0.9, 0.1)) == pytest.approx(0.327453, abs=5e-7)
    # The reference number of 0.594971 was found on a grid of deltas; ours may only be a little larger.
    assert 0 <= float(HGMComplement().reach(0.9, 0.1)) - 0.594971 < 3e-5


def test_the_published_bound_claims_more_than_is_true() -> None:
    """The halfspace with scores 0.9999 and 0.0001 has changed its answer inside the claimed distance."""
    claimed = float(find_bound("published", Law.GAUSSIAN).reach(0.9999, 1e-4))
    assert claimed == pytest.approx(4.0817, abs=5e-5)
    assert float(ndtr(ndtri(0.9999) - claimed)) == pytest.approx(0.3584, abs=5e-5)
    assert claimed > float(TightGaussian().reach(0.9999, 1e-4)) == pytest.approx(3.7190, abs=5e-5)


def test_only_the_published_bound_is_not_proven() -> None:
    gaussian = set(bound_names()) - {"composition", "best", "pure-epsilon"}
    statuses = {name: find_bound(name, Law.GAUSSIAN).status for name in gaussian}
    assert {name for name, status in statuses.items() if status is not Status.PROVEN} == {"published"}
    assert all(find_bound(name, Law.LAPLACE).status is Status.PROVEN for name in set(bound_names()) - gaussian | {"tight"})
    for law in Law:
        published = find_bound("published", law)
        assert published.status is Status.REFUTED
        assert published.reason
    names = {"best", "tight", "pure-epsilon", "hgm", "hgm-complement", "pixeldp", "composition", "published"}
    assert set(bound_names()) == names


def test_default_path_keeps_the_radii_of_cohen_to_the_last_bit() -> None:
    """Votes, Clopper-Pearson, complement, tight: sigma * Phi^-1(lower bound - tau), as certified since the first release."""
    draws, alpha, tau, sigma = 10_000, 0.001, 3.1e-10, 0.25
    votes = np.arange(draws + 1, dtype=np.int64)
    low, high = find_confidence("clopper-pearson").bounds(Evidence.of_votes(draws, votes), alpha, 10, RunnerUp.COMPLEMENT)
    low, high = after_tau(low, high, tau)
    probability = clopper_pearson_lower(votes, draws, alpha) - tau
    assert np.array_equal(low > high, probability > 0.5)
    expected = sigma * ndtri(np.where(probability > 0.5, probability, 0.5))
    assert np.array_equal(sigma * TightGaussian().reach(low, high), expected)


def test_tau_added_to_the_complement_would_change_last_bits() -> None:
    """Why ``after_tau`` treats the complement as its own case: the planted form differs."""
    low = np.random.default_rng(0).uniform(0.6, 0.999, 10_000)
    lowered, high = after_tau(low, 1 - low, 3.1e-10)
    planted = TightGaussian().reach(lowered, (1 - low) + 3.1e-10)
    assert np.array_equal(TightGaussian().reach(lowered, high), ndtri(lowered))
    assert (planted > ndtri(lowered)).any()


def test_tau_moves_both_bounds_outwards() -> None:
    low, high = after_tau(np.array([0.5, 0.9]), np.array([0.3, 0.99]), 0.02)
    np.testing.assert_allclose(low, [0.48, 0.88])
    np.testing.assert_allclose(high, [0.32, 1.0])


def pairs(count: int) -> list[tuple[float, float]]:
    """From hardly decided to nearly certain."""
    draw = np.random.default_rng(3)
    low = np.where(np.arange(count) % 2, draw.uniform(0.1, 1, count), 1 - 10 ** draw.uniform(-9, -0.5, count))
    high = np.minimum(low, 1 - low) * np.where(np.arange(count) % 3, draw.uniform(0, 1, count), 1 - 1e-9)
    return list(zip(low.tolist(), high.tolist(), strict=True))


@pytest.mark.parametrize("delta", [1e-25, 1e-5, 0.01])
@pytest.mark.parametrize("classic", [True, False], ids=["pixeldp", "hgm"])
def test_rounded_down_and_close(classic: bool, delta: float) -> None:
    bound = PixelDPGaussian(delta=delta) if classic else HGM(delta=delta)
    for low, high in pairs(60):
        exact, reach = exact_output_privacy(low, high, delta, classic=classic), float(bound.reach(low, high))
        assert reach <= exact
        assert reach >= exact * (1 - 1e-11) - 1e-14


def test_tau_pays_for_the_rounding_of_the_tight_bound() -> None:
    for low, high in pairs(150):
        lowered, raised = after_tau(np.array(low), np.array(high), 2.0**-36)
        assert float(TightGaussian().reach(lowered, raised)) <= exact_tight(low, high)


def test_without_tau_the_tight_bound_would_sometimes_be_too_large() -> None:
    """The margin is needed: the check above can fail."""
    assert any(float(TightGaussian().reach(low, high)) > exact_tight(low, high) for low, high in pairs(150))


def test_names_and_noise_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="wanted: one of: best, tight, hgm, hgm-complement, pixeldp, published"):
        find_bound("longest", Law.GAUSSIAN)
    for name in ("hgm", "hgm-complement"):
        with pytest.raises(ConfigError, match="no such bound for laplace noise"):
            find_bound(name, Law.LAPLACE)
    for delta in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="delta cannot be used"):
            HGM(delta=delta)


Setting = tuple[float, float, float, float, float, RobustnessBound]
BOUNDS = [find_bound(name, law) for law in Law for name in ("tight", "pixeldp")] + [HGM()]


def _is_last(size: float, setting: Setting) -> bool:
    return is_robust(size, *setting) and not is_robust(math.nextafter(size, math.inf), *setting)


@PROPERTY
@given(
    low=st.floats(0.5, 0.99999),
    share=st.floats(0, 1),
    sigma=st.floats(1e-3, 1e3),
    norm=st.floats(1e-3, 1e3),
    slack=st.sampled_from([0.0, 1e-9, 1e-3]),
    bound=st.sampled_from(BOUNDS),
)
def test_the_largest_size_is_the_last_robust_float(
    low: float, share: float, sigma: float, norm: float, slack: float, bound: RobustnessBound
) -> None:
    setting = (low, share * (1 - low), sigma, norm, slack, bound)
    size = largest_size(*setting)
    if size == 0 or math.isinf(size):
        assert is_robust(1e300, *setting) == math.isinf(size)
        return
    assert _is_last(size, setting)
    assert all(is_robust(size * share, *setting) for share in (0.0, 1e-9, 0.3, 0.999999))
    assert not is_robust(size * (1 + 1e-12), *setting)
    if slack == 0:
        assert size == pytest.approx(sigma * float(bound.reach(low, setting[1])) / norm, rel=1e-14)


def test_the_plain_formula_is_caught() -> None:
    """(sigma * reach - slack) / norm in floats is at times one float too large: planted, and seen."""
    draw = np.random.default_rng(5)
    above = 0
    for _ in range(300):
        low, sigma, norm, slack = (float(value) for value in draw.uniform((0.6, 0.1, 0.5, 0), (0.99, 2, 9, 0.01)))
        setting = (low, 1 - low, sigma, norm, slack, find_bound("tight", Law.GAUSSIAN))
        planted = (sigma * float(setting[-1].reach(low, 1 - low)) - slack) / norm
        above += not is_robust(planted, *setting)
        assert _is_last(largest_size(*setting), setting)
    assert above > 20


def _algorithm_1(size: float, low: float, high: float, sigma: float, norm: float, slack: float) -> bool:
    """Lines 18-23: for some delta, the epsilon that the noise keeps at this size satisfies Eq. 4. On a grid of deltas."""
    needed = sigma / (size * norm + slack)
    for delta in np.exp(np.linspace(math.log(1e-12), math.log((low - high) / 2), 800, endpoint=False)):

        def excess(epsilon: float, delta: float = float(delta)) -> float:
            return extended_gaussian_sigma(epsilon, delta) - needed

        epsilon = float(brentq(excess, 1e-9, 1e6, xtol=1e-15))
        if epsilon < 350 and low > math.exp(2 * epsilon) * high + (1 + math.exp(epsilon)) * float(delta):
            return True
    return False


@pytest.mark.parametrize(("low", "high", "slack"), [(0.9, 0.1, 0.0), (0.99, 0.001, 0.01)])
def test_the_answer_is_that_of_algorithm_1(low: float, high: float, slack: float) -> None:
    size = largest_size(low, high, 0.5, 2.0, slack, HGM())
    assert _algorithm_1(size * 0.9999, low, high, 0.5, 2.0, slack)
    assert not _algorithm_1(size * 1.0001, low, high, 0.5, 2.0, slack)


@pytest.mark.parametrize(("low", "high", "slack"), [(0.4, 0.5, 0.0), (0.5, 0.5, 0.0), (0.6, 0.4, 1.0), (math.nan, 0.1, 0.0)])
def test_nothing_is_robust_where_nothing_is_decided(low: float, high: float, slack: float) -> None:
    for bound in BOUNDS:
        assert largest_size(low, high, 0.5, 2.0, slack, bound) == 0
        assert not is_robust(1e-300, low, high, 0.5, 2.0, slack, bound)
        assert not is_robust(0.0, low, high, 0.5, 2.0, slack, bound)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.0}, "sigma cannot be used"),
        ({"sigma": math.inf}, "sigma cannot be used"),
        ({"operator_norm": 0.0}, "operator norm cannot be used"),
        ({"operator_norm": math.nan}, "operator norm cannot be used"),
        ({"slack": -1e-9}, "slack cannot be used"),
        ({"slack": math.nan}, "slack cannot be used"),
        ({"size": -1.0}, "size cannot be used"),
        ({"size": math.inf}, "size cannot be used"),
    ],
)
def test_values_that_cannot_be_used_are_refused(change: dict[str, float], message: str) -> None:
    values = {"size": 0.1, "low": 0.9, "high": 0.1, "sigma": 0.5, "operator_norm": 2.0, "slack": 0.0, **change}
    ask: Callable[..., bool] = is_robust
    with pytest.raises(ConfigError, match=message):
        ask(**values, bound=HGM())
