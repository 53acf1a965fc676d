"""Appendix N computes with noise that is not drawn: half-spaces that change their answer inside its radius, in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from two_noises_oracles import TwoNoisesHalfspace, linear

from twinproof.certification.bounds import find_bound
from twinproof.certification.two_noises import Rates, composition_radius, rates, single_pass_radius
from twinproof.guarantee import Status
from twinproof.layers.noise import Law
from twinproof_papers.published.bounds import PublishedComposition, appendix_n_radius

TOP = 0.9
PAIRS = np.linspace(0.501, 0.999, 60)


def _score_under_one_noise(shift: float, scale: float) -> float:
    """The top score of the half-space with score ``TOP`` at 0, where the input moved by ``shift`` towards its boundary."""
    left = -scale * math.log(2 * (1 - TOP)) - shift
    return 1 - 0.5 * math.exp(-left / scale) if left >= 0 else 0.5 * math.exp(left / scale)


@pytest.mark.parametrize(("psi", "true", "score"), [(2.0, 0.8047, 0.2778), (10.0, 0.1609, 4.2e-5)])
def test_one_noise_of_scale_one_that_is_drawn_psi_times_smaller(psi: float, true: float, score: float) -> None:
    """The reach is that of scale 1, as it is stated; the half-space sees 1 / psi."""
    claimed = float(find_bound("published", Law.LAPLACE).reach(TOP, 1 - TOP))
    assert claimed == pytest.approx(1.0986, abs=5e-5)
    assert float(find_bound("tight", Law.LAPLACE).reach(TOP, 1 - TOP)) / psi == pytest.approx(true, abs=5e-5)
    assert _score_under_one_noise(true - 1e-4, 1 / psi) > 0.5 > _score_under_one_noise(true + 1e-4, 1 / psi)
    assert _score_under_one_noise(claimed, 1 / psi) == pytest.approx(score, rel=1e-2)
    assert _score_under_one_noise(claimed, 1.0) > 0.5, "drawn as it is stated, it would be true"


def _on_a_line(psi: float) -> tuple[TwoNoisesHalfspace, Rates]:
    """Two noises that are stated with scale 1, as drawn, behind a layer that changes nothing; and their rates."""
    model = TwoNoisesHalfspace(np.array([[1.0]]), np.array([1.0]), 0.0, 1 / psi, 1 / psi)
    return model, rates(linear(model.theta), (1,), "l1", model.input_scale, model.hidden_scale)


def test_two_noises_in_one_pass_at_psi_10() -> None:
    """The paper's psi on CIFAR-10: the boundary lies at less than half of the claim."""
    model, drawn = _on_a_line(10.0)
    boundary = brentq(lambda margin: model.score(margin) - TOP, 0.0, 10.0)
    claimed = float(appendix_n_radius(TOP, 1 - TOP, drawn, 10.0))
    assert claimed == pytest.approx(1.0986 / 2, abs=5e-5)
    assert boundary < claimed / 2
    assert model.score(boundary - claimed) < 0.1, "another answer, inside what is claimed"
    assert float(single_pass_radius(TOP, 1 - TOP, drawn)) < boundary


@pytest.mark.parametrize("psi", [1.0, 1.5, 2.0])
def test_up_to_psi_2_one_pass_hides_as_much_as_is_claimed(psi: float) -> None:
    """psi kappa phi / (kappa + phi) <= max(kappa, phi): true by another argument than the paper's."""
    for costs in np.random.default_rng(4).lognormal(sigma=2, size=(50, 2)):
        drawn = Rates(input=float(costs[0]), hidden=float(costs[1]), split=float(costs.min()))
        assert (appendix_n_radius(PAIRS, 1 - PAIRS, drawn, psi) <= single_pass_radius(PAIRS, 1 - PAIRS, drawn)).all()


def test_beyond_psi_2_it_may_claim_more_than_is_proven() -> None:
    drawn = Rates(input=1.0, hidden=1.0, split=1.0)
    close = 0.5 + 1e-6  # where the complement proves no more than the two scores
    assert appendix_n_radius(close, 1 - close, drawn, 2.1) > single_pass_radius(close, 1 - close, drawn)


def test_it_is_psi_times_the_composition_and_called_refuted() -> None:
    low, high = np.array([0.6, 0.9, 0.4]), np.array([0.3, 0.05, 0.5])
    drawn = Rates(input=3.0, hidden=5.0, split=2.0)
    assert appendix_n_radius(low, high, drawn, 2.0) == pytest.approx(2 * composition_radius(low, high, drawn))
    assert appendix_n_radius(low, high, drawn)[2] == 0
    assert PublishedComposition.status is Status.REFUTED
