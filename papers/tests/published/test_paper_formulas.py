"""Published formulas that are not private: by how much, and where they happen to hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mechanism_oracles import exact_gaussian_delta
from operator_norm_oracles import Array, Case, dense, exact_norm, random_case, searched_norm
from torch import nn

from twinproof.errors import ConfigError
from twinproof.privacy.functional import (
    FeatureBall,
    output_polynomial,
    polynomial_sensitivity,
    reconstruction_polynomial,
    reconstruction_sensitivity,
)
from twinproof.privacy.linear_maps import Norm
from twinproof.privacy.mechanisms import calibrate, extended_gaussian_sigma
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.paper_formulas import paper_reshaped_kernel, paper_row_norm, paper_single_feature_map
from twinproof.privacy.redistribution import Redistribution
from twinproof_papers.published.formulas import (
    paper_classic_sigma,
    paper_delta_l2,
    paper_delta_r,
    paper_extended_sigma,
    paper_heterogeneous_deviations,
)


@pytest.mark.parametrize(("epsilon", "delta", "exact"), [(16, 1e-5, 3.363e-4), (8, 1e-3, 1.313e-3), (16, 1e-3, 3.199e-2)])
def test_the_classic_formula_breaks_its_promise_at_large_epsilon(epsilon: float, delta: float, exact: float) -> None:
    found = exact_gaussian_delta(epsilon, paper_classic_sigma(epsilon, delta))
    assert found == pytest.approx(exact, rel=5e-4)
    assert found > delta


@pytest.mark.parametrize(
    ("delta", "last"), [(1e-3, 7.463474370), (1e-5, 8.419771302), (1e-6, 8.782091752), (1e-9, 9.623657134)]
)
def test_where_the_classic_formula_stops_being_private(delta: float, last: float) -> None:
    assert exact_gaussian_delta(last - 1e-6, paper_classic_sigma(last - 1e-6, delta)) < delta
    assert exact_gaussian_delta(last + 1e-6, paper_classic_sigma(last + 1e-6, delta)) > delta


def test_the_misprint_breaks_its_promise_and_the_proof_does_not() -> None:
    assert exact_gaussian_delta(1000, paper_extended_sigma(1000, 0.45)) / 0.45 == pytest.approx(1.068, abs=5e-4)
    assert exact_gaussian_delta(1000, extended_gaussian_sigma(1000, 0.45)) / 0.45 < 0.63
    assert exact_gaussian_delta(1000, paper_extended_sigma(1000, 0.44)) < 0.44
    assert paper_extended_sigma(1, 1e-5) < extended_gaussian_sigma(1, 1e-5)
    with pytest.raises(ConfigError, match="the printed formula has no value"):
        paper_extended_sigma(1, 0.46)


@pytest.mark.parametrize(("shares", "exact"), [((0.1, 0.9), 0.14005), ((0.3, 0.7), 1.6028e-4)])
def test_forgetting_the_root_breaks_the_promise_for_the_quietest_output(shares: tuple[float, float], exact: float) -> None:
    """One output moves as far as the sensitivity allows; delta 1e-5 was promised."""
    epsilon, delta = 8.0, 1e-5
    r = Redistribution(shares)
    mechanism, change = calibrate("heterogeneous", epsilon, delta, 1.0, r), r.scales()[0]
    wrong = paper_heterogeneous_deviations(mechanism.sigma, r)[0]
    assert exact_gaussian_delta(epsilon, float(wrong / change)) == pytest.approx(exact, rel=1e-4)
    assert exact_gaussian_delta(epsilon, mechanism.sigma) < delta


@pytest.mark.parametrize("hidden", [5, 32])
def test_the_published_delta_r_is_exceeded_by_one_record(hidden: int) -> None:
    """A black image whose hidden units are all 1: theta' x = 1 for theta = -1/d."""
    inputs = -torch.ones(1, 10, dtype=torch.float64)
    units = inputs @ torch.full((10, hidden), -0.1, dtype=torch.float64)
    assert torch.allclose(units, torch.ones_like(units)), "inside the paper's bounds"
    moved = float(reconstruction_polynomial(inputs, units).linear.abs().sum())
    assert moved == pytest.approx(1.5 * 10 * hidden)
    assert moved > paper_delta_r(10, hidden), "by coming or going alone; replaced, it moves more"
    assert moved <= reconstruction_sensitivity(10, FeatureBall(Norm.LINF, 1.0, hidden), -1.0, 1.0) * (1 + 1e-9)


def test_the_published_delta_l2_covers_the_labels_part_alone() -> None:
    features, classes = 256, 10
    record = torch.ones(1, features, dtype=torch.float64)
    polynomial = output_polynomial(record, torch.tensor([3]), classes)
    labels_part = float((polynomial.linear - record / 2).abs().sum())
    assert labels_part <= paper_delta_l2(features) == 512
    assert float(polynomial.linear.abs().sum()) > 2 * paper_delta_l2(features), "the linear coefficients of all classes"
    moved = float(polynomial.monomials().abs().sum())
    assert moved > 100 * paper_delta_l2(features)
    assert moved <= polynomial_sensitivity(FeatureBall(Norm.LINF, 1.0, features), classes)


MNIST = (1, 28, 28)


def is_refuted(claimed: float, matrix: Array, source: str, target: str) -> bool:
    """Whether an actual input moves the output further than ``claimed``."""
    truth = exact_norm(matrix, source, target) or 0.0
    return max(truth, searched_norm(matrix, source, target, np.random.default_rng(0))) > claimed * (1 + 1e-14)


def reference() -> Case:
    layer = nn.Conv2d(1, 32, 5, stride=2, padding=2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.random.RandomState(0).randn(32, 1, 5, 5) / 5))
    return Case(layer, MNIST)


def test_the_papers_single_feature_map_is_refuted() -> None:
    """73.36 is claimed for the change of all outputs, and a sign vector moves them by more than 92."""
    case = reference()
    claimed = paper_single_feature_map(case.layer, MNIST)
    assert claimed == pytest.approx(73.362764, abs=1e-6)
    assert is_refuted(claimed, dense(case), "linf", "l2")
    assert operator_norm(case.layer, MNIST, "linf", "l2").lower > 1.25 * claimed


def test_the_reshaped_kernel_is_refuted_without_the_factor_for_overlap() -> None:
    case = reference()
    claimed = paper_reshaped_kernel(case.layer)
    assert claimed == pytest.approx(1.921, abs=1e-3)
    assert is_refuted(claimed, dense(case), "l2", "l2")
    assert not is_refuted(claimed * math.ceil(5 / 2), dense(case), "l2", "l2")


def test_the_papers_row_norm_holds_and_is_loose() -> None:
    case = reference()
    assert paper_row_norm(case.layer, MNIST) == pytest.approx(415.002462, abs=1e-6)
    random = np.random.default_rng(6)
    for _ in range(100):
        drawn = random_case(random, most_inputs=12)
        outputs = len(dense(drawn))
        shares = random.dirichlet(np.ones(outputs)) + 1e-3
        scale = np.sqrt(outputs * shares / shares.sum())
        whitened = dense(Case(drawn.layer, drawn.shape, scale))
        assert not is_refuted(paper_row_norm(drawn.layer, drawn.shape, scale), whitened, "linf", "l2")
