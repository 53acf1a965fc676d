"""Certificates for every law, place and norm against networks whose radius is known, and the bugs this must catch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from certify_layer_oracles import NoisyHalfspace, noisy_halfspace
from certify_oracles import MOST_FAILURES_IN_10_000, Truth, assert_few_failures, failures
from numpy.typing import NDArray
from torch import nn

from twinproof.certification import grid_noise, noise_site
from twinproof.certification.confidence import RunnerUp, find_confidence
from twinproof.certification.method import PLAIN, Method, Sampling
from twinproof.certification.noise_site import WhitenedLayer, layer_norm
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.runs.certificates import ABSTAIN, Certificate

NORMS = ("l1", "l2", "linf")
EACH = 3400  # for each norm: more than 10,000 in all
SAMPLING = Sampling(n0=20, n=150, alpha=0.001)
# All below one: a norm that forgets them, or takes their inverses, is too small.
SCALES = np.array([0.5, 0.9, 0.7, 0.4])
PLACES = [(law, place) for law in Law for place in Place]


def _halfspace(law: Law, place: Place, deviation: float, **options: Any) -> NoisyHalfspace:
    direction = np.array([1.0, -1.0, 1.0]) if law is Law.GAUSSIAN else np.array([0.0, -1.3, 0.0])
    return noisy_halfspace(law, place, deviation, direction, scales=SCALES, **options)


def _judged(
    model: NoisyHalfspace, method: Method, count: int, sampling: Sampling = SAMPLING
) -> tuple[list[Certificate], Truth]:
    stored = np.random.default_rng(11).integers(0, 256, size=(count, 3))
    smoothed = smooth(model.network, method=method)
    return smoothed.certify(stored, sampling=sampling, key=Key.from_seed(7)), model.truth(stored / 255, method.norm)


def _failed(law: Law, place: Place) -> int:
    models = zip(NORMS, (0.2, 0.35, 0.6), strict=True)
    return sum(failures(*_judged(_halfspace(law, place, sigma), Method(norm=norm), EACH)) for norm, sigma in models)


@pytest.mark.parametrize(("law", "place"), PLACES)
def test_hardly_any_certificate_is_false(law: Law, place: Place) -> None:
    assert_few_failures(_failed(law, place), 3 * EACH)


# Where the bound, the norm and the direction are all tight; at the input the direction is not the worst for every norm.
TIGHT = [(law, Place.FIRST_LAYER, norm) for law in Law for norm in NORMS] + [
    (Law.GAUSSIAN, Place.INPUT, "l2"),
    (Law.GAUSSIAN, Place.INPUT, "linf"),
    (Law.LAPLACE, Place.INPUT, "l1"),
]


@pytest.mark.parametrize(("law", "place", "norm"), TIGHT)
def test_certificates_are_not_empty_talk(law: Law, place: Place, norm: str) -> None:
    """Certified radii come near the true ones, so that a norm or a noise that is a little wrong shows."""
    made, truth = _judged(_halfspace(law, place, 0.3), Method(norm=norm), 60, Sampling(n0=50, n=4000))
    far = truth.radii > 0.5 * np.quantile(truth.radii, 0.8)
    reached = np.array([one.radius for one in made])[far] / truth.radii[far]
    assert reached.max() <= 1
    assert reached.mean() > (0.8 if law is Law.GAUSSIAN else 0.7)


@pytest.mark.parametrize("bug", ["scales inverted", "norm of the raw layer"])
def test_planted_norms_of_another_layer_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: NDArray[np.float64]) -> Any:
        return layer_norm(layer, shape, law, norm, 1 / scale if bug == "scales inverted" else np.ones_like(scale))

    monkeypatch.setattr(noise_site, "layer_norm", wrong)
    made, truth = _judged(_halfspace(Law.GAUSSIAN, Place.FIRST_LAYER, 0.35), PLAIN, 1000)
    assert failures(made, truth) > MOST_FAILURES_IN_10_000, "already among 1,000"


def test_planted_norm_of_the_other_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laplace noise hides shifts in l1, which are longer than in l2 where more than one output moves."""

    def wrong(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: NDArray[np.float64]) -> Any:
        return layer_norm(layer, shape, Law.GAUSSIAN, norm, scale)

    layer = nn.Linear(3, 4)
    assert wrong(layer, (3,), Law.LAPLACE, "l2", SCALES).value < layer_norm(layer, (3,), Law.LAPLACE, "l2", SCALES).value
    monkeypatch.setattr(noise_site, "layer_norm", wrong)
    network = add_noise(
        nn.Sequential(layer, nn.Linear(4, 2)),
        (3,),
        Place.FIRST_LAYER,
        lambda s: NoiseLayer(s, Law.LAPLACE, 1.0, UniformSpread(s)),
    )
    assert smooth(network).operator_norm((3,)).value < layer_norm(layer, (3,), Law.LAPLACE, "l2", np.ones(4)).value


def _assert_share_of_votes(claimed: float, used: float, place: Place) -> None:
    """One scale from a boundary along an axis the share of votes must be 1 - 1/(2e), to 6 standard errors."""
    inputs, draws = 200, 5000
    model = noisy_halfspace(Law.LAPLACE, place, used, np.array([0.0, 1.0]), scales=np.ones(2))
    stored = np.zeros((inputs, 2), dtype=np.int64)
    distance = float(model.truth(stored[:1] / 255, "l1").radii[0])
    made = smooth(model.network).certify(stored, sampling=Sampling(50, draws), key=Key.from_seed(8))
    share = sum(one.votes for one in made) / (inputs * draws)
    expected = 1 - math.exp(-distance / claimed) / 2
    error = 6 * math.sqrt(expected * (1 - expected) / (inputs * draws)) + 2e-4  # half a step of the grid at the input
    assert abs(share - expected) <= error, f"share {share:.5f}, expected {expected:.5f} within {error:.5f}"


@pytest.mark.parametrize("place", list(Place))
def test_votes_fall_as_the_stated_scale_of_laplace_noise_says(place: Place) -> None:
    _assert_share_of_votes(0.5, 0.5, place)


@pytest.mark.parametrize("place", list(Place))
def test_planted_laplace_noise_that_is_two_percent_small_is_caught(place: Place) -> None:
    with pytest.raises(AssertionError, match="share"):
        _assert_share_of_votes(0.5, 0.49, place)


def _staircase() -> SmoothedClassifier:
    """64 equal outputs of one input on a coarse grid: what the network sees moves in large steps."""
    first, last = nn.Linear(1, 64, bias=False, dtype=torch.float64), nn.Linear(64, 2, dtype=torch.float64)
    with torch.no_grad():
        first.weight.fill_(1 / 8)
        last.weight.copy_(torch.tensor([[1 / 8], [-1 / 8]]).expand(2, 64))
        last.bias.copy_(torch.tensor([-0.503, 0.503]))
    network = add_noise(
        nn.Sequential(first, last),
        (1,),
        Place.FIRST_LAYER,
        lambda shape: NoiseLayer(shape, Law.GAUSSIAN, 0.5, UniformSpread(shape)),
    )
    return smooth(network)


def _false_on_the_staircase() -> int:
    """Certificates beyond the next stored input with another answer, which the steps themselves tell; alpha is 1e-8."""
    smoothed, levels = _staircase(), torch.arange(256).float()[:, None]
    seen = smoothed.site.points(levels).double().sum(dim=1).numpy() / 8
    answers = (seen <= 0.503).astype(np.int64)
    stored = np.arange(108, 148)
    radii = np.array([np.abs(np.flatnonzero(answers != answers[at]) - at).min() / 255 for at in stored])
    sampling = Sampling(n0=200, n=12_000, alpha=1e-8)
    made = smoothed.certify(stored[:, None], sampling=sampling, key=Key.from_seed(3))
    assert sum(one.prediction != ABSTAIN for one in made) > 10
    return failures(made, Truth(answers[stored], radii))


def test_no_certificate_is_false_on_a_coarse_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_noise, "_WANTED_SLACK", 1.0)
    assert _staircase().site.slack == pytest.approx(8 * 0.5 / 64, rel=1e-6)
    assert _false_on_the_staircase() == 0


def test_planted_forgotten_slack_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_noise, "_WANTED_SLACK", 1.0)
    honest = WhitenedLayer.__init__

    def forgetful(self: WhitenedLayer, *what: Any) -> None:
        honest(self, *what)
        self.slack = 0.0

    monkeypatch.setattr(WhitenedLayer, "__init__", forgetful)
    assert _false_on_the_staircase() > 0


METHODS = [
    Method(confidence="hoeffding"),
    Method(runner_up="union"),
    Method(statistic="scores", confidence="empirical-bernstein"),
    Method(statistic="scores", confidence="hoeffding", runner_up="union"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.statistic}-{method.confidence}-{method.runner_up}")
def test_other_statistics_and_confidence_bounds_certify_only_what_is_true(method: Method) -> None:
    """Of 1,000 at alpha 0.001 more than 9 fail with probability below 1e-6."""
    model = _halfspace(Law.GAUSSIAN, Place.FIRST_LAYER, 0.3, sharpness=100.0)
    made, truth = _judged(model, method, 1000, Sampling(n0=20, n=300))
    assert failures(made, truth) <= 9
    assert sum(one.prediction != ABSTAIN for one in made) > 100


def _assert_bounds_hold(alpha: float = 0.05, total: int = 20_000) -> None:
    """How often low or high is wrong for a class that was chosen beforehand; the false alarm is below 1e-6.

    With these probabilities the two bounds that matter fail for different draws: all of alpha for each would be twice alpha.
    """
    confidence, probabilities = find_confidence("clopper-pearson"), np.array([0.5, 0.45, 0.05])
    votes = np.random.default_rng(1).multinomial(1000, probabilities, size=total)
    top = np.zeros(total, dtype=np.int64)
    evidence = confidence.evidence(votes, votes, top, draws=1000, resolution=1, alpha=alpha, runner_up=RunnerUp.UNION)
    low, high = confidence.bounds(evidence, alpha, 3, RunnerUp.UNION)
    failed = int(((low > 0.5) | (high < 0.45)).sum())
    assert failed <= alpha * total + 5 * math.sqrt(alpha * total), f"{failed} bounds are false"


def test_union_bounds_over_classes_fail_no_more_often_than_alpha() -> None:
    _assert_bounds_hold()


def test_planted_union_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunnerUp, "level", lambda self, alpha, classes: alpha)
    with pytest.raises(AssertionError, match="bounds are false"):
        _assert_bounds_hold()


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("norm", NORMS)
def test_the_tight_bound_never_gives_less_than_the_papers(norm: str, place: Place) -> None:
    model = _halfspace(Law.GAUSSIAN, place, 0.3)
    radii = {
        bound: np.array([one.radius for one in _judged(model, Method(norm=norm, bound=bound), 60)[0]])
        for bound in ("tight", "hgm-complement", "hgm", "pixeldp")
    }
    assert radii["tight"].max() > 0
    assert (radii["tight"] >= radii["hgm-complement"]).all()
    assert (radii["hgm-complement"] >= radii["hgm"]).all()
    assert (radii["hgm"] >= 0).all()
    assert (radii["tight"] >= radii["pixeldp"]).all()


def test_plain_is_the_default() -> None:
    assert smooth(nn.Linear(2, 2), 0.5).method == PLAIN == Method()
