"""Appendix N of StoBatch computes with noise that is not drawn: what is certified, and half-spaces inside its radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import binom
from two_noises_oracles import TwoNoisesHalfspace, linear

from twinproof.certification.catalogue import find_bound
from twinproof.certification.confidence import Evidence
from twinproof.certification.method import Method, Sampling
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.certification.two_noise_bounds import Rates, composition_radius, rates, single_pass_radius
from twinproof.certification.two_noises import TwoNoisesSite
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.fixed_draws import PSI, fixed_draws_of, with_fixed_draws
from twinproof.layers.noise import Law
from twinproof.layers.noise_placement import BOTH_PLACES

TOP = 0.9


def appendix_n_radius(low: ArrayLike, high: ArrayLike, drawn: Rates, psi: float) -> NDArray[np.float64]:
    """The published size: Corollary 1 for the scales as stated, psi times those ``drawn`` (whose rates these are)."""
    return np.asarray(psi * composition_radius(low, high, drawn), dtype=np.float64)


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


NORMS = ("l1", "linf")
SAMPLING = Sampling(n0=20, n=150, alpha=0.001)
INPUTS = 2000
# More failures than this have a probability below 1e-6 where each certificate fails with at most alpha.
MOST = int(binom.isf(1e-6, INPUTS, SAMPLING.alpha))
# Scales as they are stated; a network draws psi times less.
PLANE = TwoNoisesHalfspace(np.array([[1.0, 0.0], [0.0, 0.4]]), np.array([1.0, 0.02]), 0.602, 0.02, 0.1)


def _published(model: TwoNoisesHalfspace, psi: float = PSI) -> tuple[torch.nn.Sequential, TwoNoisesHalfspace]:
    """A network like those of published runs, and the half-space that it is: draws that are kept move its boundary."""
    network = with_fixed_draws(model.network(psi), (model.theta.shape[1],))
    two, draws = fixed_draws_of(network)
    draws.double()  # as the layers of the oracle are
    with torch.no_grad():
        draws.on_input.fill_(0.07)
        draws.on_layer.fill_(0.03)
    draws.settle(two)
    moved = float(model.read @ draws.offset.numpy())
    return network, replace(model, cut=model.cut - moved)


def _failures(smoothed: SmoothedClassifier, model: TwoNoisesHalfspace) -> int:
    """Certificates for another answer than the true one, or above the exact radius."""
    stored = np.random.default_rng(5).integers(0, 256, size=(INPUTS, model.theta.shape[1]))
    made = smoothed.certify(stored, sampling=SAMPLING, key=Key.from_seed(9))
    answered, radii = (np.array([getattr(one, name) for one in made]) for name in ("prediction", "radius"))
    assert (answered >= 0).mean() > 0.3, "a test without certificates proves nothing"
    truth = (stored / 255 @ model.direction <= model.cut).astype(np.int64)
    return int(((answered >= 0) & ((answered != truth) | (radii > model.radii(stored / 255, smoothed.norm)))).sum())


def test_it_is_refuted_with_its_counter_example() -> None:
    bound = find_bound("published", Law.LAPLACE, BOTH_PLACES)
    assert bound.status is Status.REFUTED
    for number in ("1.0986", "psi = 2", "0.8047", "0.2778"):
        assert number in bound.reason
    assert bound.theorem.startswith("none")


@pytest.mark.parametrize("place", ["input", "first-layer"])
def test_it_speaks_of_two_places_alone(place: str) -> None:
    with pytest.raises(ConfigError, match=f"no such bound for laplace noise at the place '{place}'") as refused:
        find_bound("published", Law.LAPLACE, place)
    assert refused.value.wanted == "one of: best, tight, pure-epsilon, pixeldp, composition"
    assert find_bound("published", Law.GAUSSIAN, place).law is Law.GAUSSIAN


def _radii(network: torch.nn.Module, norm: str, bound: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rule = smooth(network, method=Method(norm=norm, bound=bound)).radius_rule((2,), 2)
    return rule.certified(Evidence.of_votes(500, np.arange(501, dtype=np.int64)), 0.001).radii


@pytest.mark.parametrize("norm", NORMS)
def test_for_every_number_of_votes_it_is_psi_times_the_composition(norm: str) -> None:
    network, _ = _published(PLANE)
    claimed, composed, tight = (_radii(network, norm, bound) for bound in ("published", "composition", "pure-epsilon"))
    np.testing.assert_allclose(claimed, PSI * composed, atol=2.1e-6, rtol=1e-8)
    assert claimed[-1] > composed[-1] > 0
    rule = smooth(network, method=Method(norm=norm)).radius_rule((2,), 2)
    rounding = rule.slack / rule.operator_norm + 1e-6
    assert (claimed <= tight + rounding).all(), "true up to psi = 2, by the single pass and not by the paper"


@pytest.mark.parametrize("norm", NORMS)
def test_draws_that_are_kept_are_worth_nothing(norm: str) -> None:
    """Sound radii of a published network are those of a network that draws the same noise and keeps none."""
    network, _ = _published(PLANE)
    for bound in ("best", "pure-epsilon", "composition", "pixeldp"):
        assert np.array_equal(_radii(network, norm, bound), _radii(PLANE.network(PSI), norm, bound))


def test_the_norm_says_whose_it_is() -> None:
    network, _ = _published(PLANE)
    smoothed = smooth(network, method=Method(norm="linf", bound="published"))
    found = smoothed.operator_norm((2,))
    assert found.method == "paper: composition, noise stated as 2 times what is drawn"
    stated = rates(network[1], (2,), "linf", PLANE.input_scale, PLANE.hidden_scale)
    assert found.value == pytest.approx(smoothed.noise.sigma * stated.composed, rel=1e-8)
    assert smoothed.noise.sigma == PLANE.input_scale / PSI, "what is drawn is not what is stated"


@pytest.mark.parametrize("bound", ["best", "pure-epsilon", "composition"])
def test_sound_certificates_of_a_published_network_hold(bound: str) -> None:
    network, truth = _published(PLANE)
    assert _failures(smooth(network, method=Method(norm="l1", bound=bound)), truth) <= MOST


def test_planted_a_sound_bound_with_the_stated_scales_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[[TwoNoisesSite, str], Rates] = TwoNoisesSite.rates

    def stated(self: TwoNoisesSite, norm: str) -> Rates:
        found = honest(self, norm)
        return Rates(found.input / PSI, found.hidden / PSI, found.split / PSI)

    monkeypatch.setattr(TwoNoisesSite, "rates", stated)
    network, truth = _published(PLANE)
    assert _failures(smooth(network, method=Method(norm="l1")), truth) > MOST
