"""Reach against reference numbers, against arithmetic of 40 digits, and against the radii that were certified before."""

from __future__ import annotations

import numpy as np
import pytest
from bounds_oracles import exact_output_privacy, exact_tight
from scipy.special import ndtr, ndtri

from twinproof.certification.bounds import (
    Evidence,
    RobustnessBound,
    RunnerUp,
    after_tau,
    bound_names,
    find_bound,
    find_confidence,
)
from twinproof.certification.bounds.hgm import HGM, HGMComplement
from twinproof.certification.bounds.pixeldp import PixelDPGaussian
from twinproof.certification.bounds.tight import TightGaussian, TightLaplace
from twinproof.certification.clopper_pearson import clopper_pearson_lower
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.layers.noise import Law

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
COLUMNS: list[RobustnessBound] = [
    TightGaussian(),
    PixelDPGaussian(delta=1e-5),
    HGM(delta=1e-5),
    PixelDPGaussian(),
    HGM(),
]


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
    gaussian = set(bound_names()) - {"composition"}
    statuses = {name: find_bound(name, Law.GAUSSIAN).status for name in gaussian}
    assert {name for name, status in statuses.items() if status is not Status.PROVEN} == {"published"}
    assert all(find_bound(name, Law.LAPLACE).status is Status.PROVEN for name in ("tight", "pixeldp", "composition"))
    for law in Law:
        published = find_bound("published", law)
        assert published.status is Status.REFUTED
        assert published.reason
    assert set(bound_names()) == {"tight", "hgm", "hgm-complement", "pixeldp", "composition", "published"}


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
    with pytest.raises(ConfigError, match="wanted: one of: tight, hgm, hgm-complement, pixeldp, published"):
        find_bound("best", Law.GAUSSIAN)
    for name in ("hgm", "hgm-complement"):
        with pytest.raises(ConfigError, match="no such bound for laplace noise"):
            find_bound(name, Law.LAPLACE)
    for delta in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="delta cannot be used"):
            HGM(delta=delta)
