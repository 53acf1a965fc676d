"""Coefficients of the objectives against the Taylor expansion that autograd finds, record by record."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from twinproof.errors import ConfigError, DataError
from twinproof.privacy.functional import output_polynomial, reconstruction_polynomial

RECORDS, FEATURES, CLASSES, HIDDEN = 6, 4, 3, 5


def some(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))) * 2 - 1


LABELS = torch.tensor([0, 2, 1, 1, 0, 2])
INPUTS = some(RECORDS, FEATURES)


def exact_output(weights: Tensor) -> Tensor:
    targets = F.one_hot(LABELS, CLASSES).double()
    return F.binary_cross_entropy_with_logits(INPUTS @ weights.T, targets, reduction="sum")


def test_the_output_objective_is_the_second_order_expansion() -> None:
    """Value, gradient and Hessian at 0 are those of the exact loss; the third derivative is gone."""
    polynomial = output_polynomial(INPUTS, LABELS, CLASSES)
    start = torch.zeros(CLASSES, FEATURES, dtype=torch.float64)
    assert torch.allclose(polynomial.value(start), exact_output(start))
    gradients = [torch.func.jacrev(function)(start) for function in (polynomial.value, exact_output)]
    hessians = [torch.func.hessian(function)(start) for function in (polynomial.value, exact_output)]
    assert torch.allclose(*gradients)
    assert torch.allclose(*hessians)
    assert torch.allclose(hessians[0], torch.func.hessian(polynomial.value)(start + 3))
    wrong = output_polynomial(INPUTS, 2 - LABELS, CLASSES)
    assert not torch.allclose(torch.func.jacrev(wrong.value)(start), gradients[1]), "other labels are seen"


def test_the_reconstruction_objective_is_the_first_order_expansion() -> None:
    inputs, hidden = (some(RECORDS, FEATURES) + 1) / 2, some(RECORDS, HIDDEN)
    polynomial = reconstruction_polynomial(inputs, hidden)

    def exact(weights: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(hidden @ weights.T, inputs, reduction="sum")

    start = torch.zeros(FEATURES, HIDDEN, dtype=torch.float64)
    assert torch.allclose(polynomial.value(start), exact(start))
    assert torch.allclose(torch.func.jacrev(polynomial.value)(start), torch.func.jacrev(exact)(start))
    assert torch.func.hessian(polynomial.value)(start).abs().max() == 0


def test_sums_are_the_sums_of_single_records() -> None:
    features, hidden = some(RECORDS, FEATURES), some(RECORDS, HIDDEN)
    whole = output_polynomial(features, LABELS, CLASSES)
    singles = [output_polynomial(features[i : i + 1], LABELS[i : i + 1], CLASSES) for i in range(RECORDS)]
    for name in ("constant", "linear", "quadratic"):
        assert torch.allclose(getattr(whole, name), torch.stack([getattr(one, name) for one in singles]).sum(0))
    parts = [reconstruction_polynomial(features[i : i + 1], hidden[i : i + 1]).linear for i in range(RECORDS)]
    assert torch.allclose(reconstruction_polynomial(features, hidden).linear, torch.stack(parts).sum(0))
    assert output_polynomial(features[:0], LABELS[:0], CLASSES).monomials().abs().max() == 0


def test_monomials_make_the_polynomial() -> None:
    """Each coefficient once, times its own product of weights, is the objective less its constant."""
    polynomial, weights = output_polynomial(some(RECORDS, FEATURES), LABELS, CLASSES), some(CLASSES, FEATURES)
    products = [weights.flatten()]
    for row in weights:
        products.append(torch.stack([row[a] * row[b] for a in range(FEATURES) for b in range(a, FEATURES)]))
    value = polynomial.monomials() @ torch.cat(products)
    assert torch.allclose(value, polynomial.value(weights) - RECORDS * CLASSES * math.log(2))


@pytest.mark.parametrize("labels", [torch.tensor([0, 3]), torch.tensor([-1, 0])])
def test_labels_of_no_class_are_refused(labels: Tensor) -> None:
    with pytest.raises(DataError, match="belongs to no class"):
        output_polynomial(some(2, FEATURES), labels, CLASSES)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="do not fit the records"):
        output_polynomial(some(2, FEATURES), LABELS, CLASSES)
    with pytest.raises(DataError, match="do not fit the records"):
        output_polynomial(some(RECORDS, FEATURES), LABELS.double(), CLASSES)
    with pytest.raises(ConfigError, match="do not fit together"):
        reconstruction_polynomial(some(2, FEATURES), some(3, HIDDEN))
