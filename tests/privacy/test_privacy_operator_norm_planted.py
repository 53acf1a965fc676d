"""Mistakes that operator norms invite, planted one by one: each must fall below a value that an input reaches."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from operator_norm_oracles import Array, Case, dense, exact_norm, searched_norm
from torch import nn

from twinproof.privacy import spectral as top_eigenvalue
from twinproof.privacy.linear_maps import Norm, layer_map
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.spectral import ascend, relaxed_bound

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


def small(scaled: bool = False) -> Case:
    torch.manual_seed(4)
    layer = nn.Conv2d(1, 3, 3, padding=1, bias=False).double()
    return Case(layer, (1, 3, 4), np.exp(np.random.default_rng(4).normal(0, 1, 36)) if scaled else None)


def value(case: Case, source: str, target: str) -> float:
    return operator_norm(case.layer, case.shape, source, target, case.scale).value


def test_the_real_bounds_pass_the_check_that_refutes_the_others() -> None:
    for case in (small(), small(scaled=True), reference()):
        for source in ("l1", "l2", "linf"):
            assert not is_refuted(value(case, source, "l2"), dense(case), source, "l2")


def test_a_ritz_value_without_a_proof_is_below_the_truth() -> None:
    """Twenty steps of the power method, as if it had converged: 3.85 for 3.93."""
    matrix = dense(reference())
    vector = np.random.default_rng(0).standard_normal(784)
    for _ in range(20):
        vector = matrix.T @ (matrix @ vector)
        vector /= np.linalg.norm(vector)
    assert is_refuted(float(np.linalg.norm(matrix @ vector)), matrix, "l2", "l2")


def test_a_converged_eigenvalue_is_below_the_truth_too_by_rounding() -> None:
    """The matrix of ones has the eigenvalue n, exactly; a solver misses it by some units in the last place, to both sides."""
    sizes = range(3, 60)
    guesses = [top_eigenvalue.top_eigenvalue_guess(np.ones((size, size))) for size in sizes]
    assert any(guess < size for guess, size in zip(guesses, sizes, strict=True))
    proven = [top_eigenvalue.proven_top_eigenvalue(np.ones((size, size)), 0.0, 1e3) for size in sizes]
    assert all(size <= top <= size * (1 + 1e-8) for top, size in zip(proven, sizes, strict=True))


def test_an_eigenvalue_that_nobody_proves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that stopped at another eigenvalue: the factorisation notices, and without it nothing would."""
    case = small()
    monkeypatch.setattr(top_eigenvalue, "top_eigenvalue_guess", lambda gram: float(np.linalg.eigvalsh(gram)[-2]))
    assert not is_refuted(value(case, "l2", "l2"), dense(case), "l2", "l2")
    monkeypatch.setattr(top_eigenvalue, "_has_cholesky", lambda gram, top: True)
    assert is_refuted(value(case, "l2", "l2"), dense(case), "l2", "l2")


def test_eigenvalues_of_the_matrix_for_those_of_its_gram_matrix() -> None:
    """A step that moves one output by its neighbour has no eigenvalue but 0, and the norm 1."""
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[1.0, 0, 0]]]))
    case = Case(layer, (1, 6))
    matrix = dense(case)
    assert is_refuted(float(np.abs(np.linalg.eigvals(matrix)).max()), matrix, "l2", "l2")
    assert value(case, "l2", "l2") == pytest.approx(1, rel=1e-9)


def forget_padding(case: Case) -> Case:
    layer = copy.deepcopy(case.layer)
    assert isinstance(layer, nn.Conv2d)
    layer.padding = (0, 0)
    return Case(layer, case.shape, None)


def double_stride(case: Case) -> Case:
    layer = copy.deepcopy(case.layer)
    assert isinstance(layer, nn.Conv2d)
    layer.stride = (2, 2)
    return Case(layer, case.shape, None)


def invert_scale(case: Case) -> Case:
    return Case(case.layer, case.shape, None if case.scale is None else 1 / case.scale)


def square_scale(case: Case) -> Case:
    """K r for its root: too small where outputs have more than their share of the noise, which the wide ones here have."""
    return Case(case.layer, case.shape, None if case.scale is None else case.scale**2)


@pytest.mark.parametrize("source", ["l1", "l2", "linf"])
@pytest.mark.parametrize(
    ("bug", "case"),
    [
        (forget_padding, small()),
        (double_stride, small()),
        (invert_scale, Case(small().layer, (1, 3, 4), np.full(36, 0.25))),
        (square_scale, Case(small().layer, (1, 3, 4), np.full(36, 4.0))),
    ],
    ids=["padding forgotten", "stride", "r inverted", "root of r forgotten"],
)
def test_the_norm_of_another_layer_is_refuted(bug: Callable[[Case], Case], case: Case, source: str) -> None:
    assert not is_refuted(value(case, source, "l2"), dense(case), source, "l2")
    assert is_refuted(value(bug(case), source, "l2"), dense(case), source, "l2")


@pytest.mark.parametrize(("source", "target"), [(Norm.LINF, Norm.L2), (Norm.LINF, Norm.L1), (Norm.L2, Norm.L1)])
def test_a_dual_without_feasibility_repair_is_refuted(source: Norm, target: Norm) -> None:
    """Weights of an ascent that stopped early, taken for a solution: their sum is what the ascent reached, from below.

    On a matrix close to rank one the relaxation has no gap, so that whatever is below its optimum is below the truth.
    """
    random = np.random.default_rng(0)
    layer = nn.Linear(10, 11, bias=False).double()
    rows = np.outer(random.standard_normal(11), random.standard_normal(10)) + 0.2 * random.standard_normal((11, 10))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(rows))
    mapped = layer_map(layer, (10,))
    factors = ascend(mapped, source, target, steps=1)
    unrepaired = factors.columns.sum() if source is Norm.LINF else np.linalg.norm(factors.columns)
    matrix = np.ldexp(rows, -mapped.exponent)
    assert is_refuted(float(unrepaired), matrix, source, target)
    assert not is_refuted(relaxed_bound(mapped, source, target, factors), matrix, source, target)
