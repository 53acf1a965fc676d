"""10,000 certificates and more on half-spaces whose radius is known, by the formulas and through CERTIFY; planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom
from two_noises_oracles import ALPHA, INPUTS, MOST_FAILURES, TwoNoisesHalfspace, linear

from twinproof.certification.bounds import TightLaplace
from twinproof.certification.confidence import Evidence, RunnerUp, find_confidence
from twinproof.certification.method import Method, Sampling
from twinproof.certification.radius import RadiusRule
from twinproof.certification.smoothed import smooth
from twinproof.certification.two_noise_bounds import Rates, composition_radius, rates, single_pass_radius
from twinproof.keys import Key

Floats = NDArray[np.float64]
Claim = Callable[[Floats, Floats, Rates], Floats]
NORMS = ("l1", "linf")
DRAWS = 2000
# The margin is several scales of the widest noise, where the bound is near the truth.
MODELS = {
    "line": TwoNoisesHalfspace(np.array([[1.0]]), np.array([1.0]), 0.0, 1.0, 2.0),
    "input": TwoNoisesHalfspace(np.array([[1.0, 0.2], [0.3, 1.0]]), np.array([1.0, 0.1]), 0.0, 2.0, 0.3),
    "hidden": TwoNoisesHalfspace(np.array([[0.9, 0.0], [0.1, 1.0]]), np.array([1.0, 0.0]), 0.0, 0.2, 1.0),
}


def _bounds(model: TwoNoisesHalfspace, margin: float) -> tuple[Floats, Floats]:
    """Confidence bounds from votes of 10,000 inputs at that margin, drawn from the exact score."""
    votes = np.random.default_rng(17).binomial(DRAWS, model.score(margin), size=INPUTS)
    confidence = find_confidence("clopper-pearson")
    return confidence.bounds(Evidence.of_votes(DRAWS, votes), ALPHA, 2, RunnerUp.COMPLEMENT)


def _failures(model: TwoNoisesHalfspace, margin: float, norm: str, claim: Claim) -> int:
    """Certificates above the exact radius of the input at that margin."""
    found = rates(linear(model.theta), (model.theta.shape[1],), norm, model.input_scale, model.hidden_scale)
    point = margin * model.direction / (model.direction @ model.direction)
    return int((claim(*_bounds(model, margin), found) > model.radii(point, norm)).sum())


@pytest.mark.parametrize("claim", [single_pass_radius, composition_radius])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", MODELS)
def test_certificates_fail_no_more_often_than_alpha(kind: str, norm: str, claim: Claim) -> None:
    for margin in (0.3, 1.0, 4.0, 8.0):
        assert _failures(MODELS[kind], margin, norm, claim) <= MOST_FAILURES


def _psi(factor: float) -> Claim:
    """Appendix N: the noise that is drawn is ``factor`` times smaller than the one that the radius is computed with."""
    return lambda low, high, found: factor * single_pass_radius(low, high, found)


def _sizes_added(low: Floats, high: Floats, found: Rates) -> Floats:
    """kappa + phi, as if the noises protected one after the other."""
    return np.asarray(TightLaplace().reach(low, high) * (1 / found.input + 1 / found.hidden), dtype=np.float64)


def _ten_percent_longer(low: Floats, high: Floats, found: Rates) -> Floats:
    """A rate that is a little too small."""
    return np.asarray(1.1 * single_pass_radius(low, high, found), dtype=np.float64)


@pytest.mark.parametrize("planted", [_psi(2), _psi(10), _sizes_added], ids=["psi 2", "psi 10", "sizes added"])
def test_planted_rules_are_refuted(planted: Claim) -> None:
    assert _failures(MODELS["line"], 8.0, "l1", planted) > MOST_FAILURES


def test_ten_percent_too_long_is_seen() -> None:
    """With the hidden noise nearly alone the bound is tight, and a little more is false."""
    model = TwoNoisesHalfspace(np.array([[1.0]]), np.array([1.0]), 0.0, 0.01, 1.0)
    assert 0.2 * ALPHA * INPUTS < _failures(model, 1.0, "l1", single_pass_radius) <= MOST_FAILURES
    assert _failures(model, 1.0, "l1", _ten_percent_longer) > MOST_FAILURES


def test_oracle_scores_against_draws() -> None:
    draw, model = np.random.default_rng(1), MODELS["input"]
    noise = (
        draw.laplace(scale=2.0, size=(200_000, 2)) @ model.direction + draw.laplace(scale=0.3, size=(200_000, 2)) @ model.read
    )
    for margin in (-1.0, 0.5, 3.0):
        assert float((noise + margin > 0).mean()) == pytest.approx(model.score(margin), abs=6 * 0.5 / np.sqrt(200_000))


# Through CERTIFY: inputs in [0, 1], drawn on the grid.
SAMPLING = Sampling(n0=20, n=150, alpha=0.001)
MOST_OF_10_000 = 28
CERTIFIED = TwoNoisesHalfspace(np.array([[1.0, 0.0], [0.0, 0.4]]), np.array([1.0, 0.02]), 0.502, 0.02, 0.1)


def _certified_failures(model: TwoNoisesHalfspace, norm: str, count: int, *, bound: str = "tight", psi: float = 1.0) -> int:
    """With ``psi`` the radii are those of the stated noise, and the votes those of noise that is psi times smaller."""
    stored = np.random.default_rng(5).integers(0, 256, size=(count, model.theta.shape[1]))
    made = smooth(model.network(psi), method=Method(norm=norm, bound=bound)).certify(
        stored, sampling=SAMPLING, key=Key.from_seed(9)
    )
    truth = (stored / 255 @ model.direction <= model.cut).astype(np.int64)
    answered = np.array([one.prediction for one in made])
    longer = psi * np.array([one.radius for one in made]) > model.radii(stored / 255, norm)
    assert (answered >= 0).mean() > 0.3, "a test without certificates proves nothing"
    return int(((answered >= 0) & ((answered != truth) | longer)).sum())


def test_the_tail_is_the_one_that_is_allowed() -> None:
    assert int(binom.isf(1e-6, 10_000, SAMPLING.alpha)) == MOST_OF_10_000


@pytest.mark.parametrize("norm", NORMS)
def test_hardly_any_certificate_of_certify_is_false(norm: str) -> None:
    assert _certified_failures(CERTIFIED, norm, 10_000) <= MOST_OF_10_000


def test_hardly_any_certificate_of_the_composition_is_false() -> None:
    assert _certified_failures(CERTIFIED, "linf", 1000, bound="composition") <= 9


def test_planted_psi_is_caught_by_certify() -> None:
    assert _certified_failures(CERTIFIED, "l1", 2000, psi=2.0) > MOST_OF_10_000


def test_planted_cheap_norm_is_caught_by_certify(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of sizes added up, in the place where CERTIFY divides by it; both norms, so that slack is no way out."""
    honest = RadiusRule.certified

    def cheap(self: RadiusRule, evidence: Evidence, alpha: float) -> object:
        wrong = RadiusRule(**{**vars(self), "operator_norm": self.operator_norm / 1.5, "slackless_norm": None})
        return honest(wrong, evidence, alpha)

    monkeypatch.setattr(RadiusRule, "certified", cheap)
    assert _certified_failures(CERTIFIED, "l1", 2000) > MOST_OF_10_000
