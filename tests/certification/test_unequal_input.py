"""Noise at the input with a scale for each coordinate: radii by independent formulas, and what is true of half-spaces."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from certify_oracles import MOST_FAILURES_IN_10_000, Truth, assert_few_failures, failures
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from twinproof.certification import noise_site
from twinproof.certification.method import Method, Sampling
from twinproof.certification.noise_site import LayerSite, NormBound, WhitenedLayer, diagonal_norm
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place
from twinproof.layers.noise_placement import add_noise
from twinproof.runs.records import Certificate
from twinproof_verify.first_layer import diagonal_norm as verifiers_norm

NORMS = ("l1", "l2", "linf")
ORDERS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
SCALES = np.array([0.4, 1.0, 2.0])
SAMPLING, EACH = Sampling(n0=20, n=150, alpha=0.001), 3400


def _unequal(direction: NDArray[np.float64], sigma: float, norm: str, law: Law = Law.GAUSSIAN) -> SmoothedClassifier:
    """A half-space whose boundary goes through the middle of the cube, behind noise of deviation sigma * SCALES."""
    read = nn.Linear(len(direction), 2, dtype=torch.float64)
    with torch.no_grad():
        read.weight.copy_(torch.from_numpy(np.stack((direction, -direction))))
        read.bias.copy_(torch.tensor([_offset(direction), -_offset(direction)]))
    network = add_noise(
        nn.Sequential(_Double(), read),
        direction.shape,
        Place.INPUT,
        lambda shape: NoiseLayer(shape, law, sigma, FixedSpread(shape, SCALES)),
    )
    return smooth(network, method=Method(norm=norm))


class _Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def _offset(direction: NDArray[np.float64]) -> float:
    return -float(direction.sum()) / 2 + 0.01


def _worst(norm: str) -> NDArray[np.float64]:
    """The half-space whose boundary is reached first for its distance in deviations: where the certificate is tight."""
    exact = SCALES.astype(np.float32).astype(np.float64)
    # With u = x / s the boundary's normal is s * direction, and the best change moves u along it.
    return np.eye(3)[0] if norm != "linf" else exact**-2.0


def _truth(direction: NDArray[np.float64], inputs: NDArray[np.float64], norm: str) -> Truth:
    """A linear score keeps its sign in expectation: the answer is the side, the radius the distance in the dual norm."""
    values = inputs @ direction + _offset(direction)
    dual = {"l1": math.inf, "l2": 2.0, "linf": 1.0}[norm]
    return Truth((values <= 0).astype(np.int64), np.abs(values) / np.linalg.norm(direction, ord=dual))


def _judged(
    direction: NDArray[np.float64], norm: str, count: int, sampling: Sampling = SAMPLING, law: Law = Law.GAUSSIAN
) -> tuple[list[Certificate], Truth]:
    stored = np.random.default_rng(11).integers(0, 256, size=(count, 3))
    made = _unequal(direction, 0.3, norm, law).certify(stored, sampling=sampling, key=Key.from_seed(7))
    return made, _truth(direction, stored / 255, norm)


@pytest.mark.parametrize("norm", NORMS)
def test_hardly_any_certificate_of_unequal_noise_is_false(norm: str) -> None:
    made, truth = _judged(_worst(norm), norm, 3 * EACH)
    assert_few_failures(failures(made, truth), 3 * EACH)


@pytest.mark.parametrize("norm", NORMS)
def test_certificates_of_unequal_noise_are_not_empty_talk(norm: str) -> None:
    made, truth = _judged(_worst(norm), norm, 60, Sampling(n0=50, n=4000))
    far = truth.radii > 0.5 * np.quantile(truth.radii, 0.8)
    reached = np.array([one.radius for one in made])[far] / truth.radii[far]
    assert reached.max() <= 1
    assert reached.mean() > 0.75


def _mean_for_least(scales: NDArray[np.float64], law: Law, norm: str) -> NormBound:
    return diagonal_norm(np.full_like(scales, scales.mean()), law, norm)


def _inverted(scales: NDArray[np.float64], law: Law, norm: str) -> NormBound:
    return diagonal_norm(1 / scales, law, norm)


def _least_forgets_others(scales: NDArray[np.float64], law: Law, norm: str) -> NormBound:
    """The largest share alone, also where all coordinates may move."""
    return diagonal_norm(scales, law, "l1")


BUGS = [*itertools.product(NORMS, [_mean_for_least, _inverted]), ("linf", _least_forgets_others)]


@pytest.mark.parametrize(("norm", "bug"), BUGS)
def test_planted_norms_of_other_scales_are_caught(norm: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_site, "diagonal_norm", bug)
    made, truth = _judged(_worst(norm), norm, 200, Sampling(n0=50, n=4000))
    assert failures(made, truth) > MOST_FAILURES_IN_10_000, "already among 200"


@pytest.mark.parametrize("norm", NORMS)
def test_the_radius_is_that_of_the_formula(norm: str) -> None:
    """sigma Phi^-1(p) / sqrt(sum 1/s^2) in linf, times the least scale in l1 and l2; rounding costs at most a hundredth."""
    sigma, scales, draws = 0.05, SCALES.astype(np.float32).astype(np.float64), 10_000
    smoothed, far = _unequal(_worst(norm), sigma, norm), np.array([[255, 255, 255]])
    found = smoothed.certify(far, sampling=Sampling(n0=20, n=draws, alpha=0.001), key=Key.from_seed(3))[0]
    assert found.votes == draws
    reach = float(stats.norm.ppf(0.001 ** (1 / draws) - smoothed.radius_rule((3,), 2).tau))
    unit = 1 / math.sqrt(float((scales**-2.0).sum())) if norm == "linf" else float(scales.min())
    assert (sigma * reach - 0.01 * sigma) * unit - 2e-6 <= found.radius <= sigma * reach * unit


def _by_search(scales: NDArray[np.float64], law: Law, norm: str) -> float:
    """The longest image of many points of the unit ball, its corners and axes among them: never above the norm."""
    size, order = len(scales), ORDERS[norm]
    random = np.random.default_rng(3).standard_normal((4000, size))
    points = np.concatenate((np.eye(size), np.ones((1, size)), (1 / scales)[None], random, np.sign(random)))
    points /= np.linalg.norm(points, ord=order, axis=1, keepdims=True)
    return float(np.linalg.norm(points / scales, ord=2 if law is Law.GAUSSIAN else 1, axis=1).max())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("law", list(Law))
def test_the_norm_is_exact_and_the_verifiers_own_is_the_same(law: Law, norm: str) -> None:
    scales = np.random.default_rng(5).uniform(0.3, 2.0, size=12)
    found, truth = diagonal_norm(scales, law, norm), _by_search(scales, law, norm)
    assert truth * (1 - 1e-12) <= found.value <= truth * (1 + 1e-9)
    assert found.method == "diagonal"
    assert verifiers_norm(scales, norm, str(law)) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("law", list(Law))
def test_points_of_stored_inputs_are_no_further_apart_than_norm_and_slack(law: Law) -> None:
    """One coordinate after another, and all of them, between stored levels that round as badly as any."""
    smoothed = _unequal(np.ones(3), 0.3, "linf", law)
    assert isinstance(smoothed.site, LayerSite)
    stored = torch.from_numpy(np.random.default_rng(2).integers(0, 256, size=(400, 3))).float()
    points, inputs = smoothed.site.points(stored).double().numpy(), stored.double().numpy() / 255
    order = 2 if law is Law.GAUSSIAN else 1
    moved = np.linalg.norm(points[:, None] - points[None], ord=order, axis=2)
    exact = np.linalg.norm((inputs[:, None] - inputs[None]) / smoothed.site.scales, ord=order, axis=2)
    assert (np.abs(moved - exact) <= smoothed.site.slack).all()
    assert smoothed.site.slack <= 0.011 * 0.3


def test_planted_slack_that_is_forgotten_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding of the divided input moves some pairs of inputs further apart than their distance."""
    monkeypatch.setattr(WhitenedLayer, "slack_for", lambda self, law: 0.0)
    with pytest.raises(AssertionError):
        test_points_of_stored_inputs_are_no_further_apart_than_norm_and_slack(Law.GAUSSIAN)
