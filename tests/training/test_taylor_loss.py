"""The Taylor losses against autograd's own expansion, their error against the bound, and one record's gradient at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.privacy.functional import output_polynomial, reconstruction_polynomial
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss, VmapPath
from twinproof.training.stobatch import balanced_cross_entropy, taylor_cross_entropy

COPIES, CLASSES = 3, 4


def exact_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    target = F.one_hot(label, logits.shape[-1]).to(logits.dtype).expand_as(logits)
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1).mean()


def derivatives(loss: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return loss(at), torch.func.jacrev(loss)(at), torch.func.hessian(loss)(at)


@pytest.mark.parametrize("label", range(CLASSES))
def test_cross_entropy_is_the_second_order_expansion(label: int) -> None:
    start, answer = torch.zeros(COPIES, CLASSES, dtype=torch.float64), torch.tensor(label)
    found = derivatives(lambda logits: taylor_cross_entropy(logits, answer), start)
    truth = derivatives(lambda logits: exact_cross_entropy(logits, answer), start)
    for one, other in zip(found, truth, strict=True):
        assert torch.allclose(one, other)
    moved = torch.func.hessian(lambda logits: taylor_cross_entropy(logits, answer))(start + 2.0)
    assert torch.allclose(moved, found[2]), "no higher order"
    wrong = derivatives(lambda logits: taylor_cross_entropy(logits, (answer + 1) % CLASSES), start)
    assert not torch.allclose(wrong[1], truth[1]), "able to fail"


def test_errors_keep_their_bounds_everywhere() -> None:
    """Above the exact loss by at most z^4/192 for each class."""
    for size in torch.linspace(-30, 30, 401, dtype=torch.float64):
        logits = size.expand(1, CLASSES)
        for label in (0, 2):
            above = taylor_cross_entropy(logits, torch.tensor(label)) - exact_cross_entropy(logits, torch.tensor(label))
            assert -1e-9 <= float(above) <= CLASSES * float(size) ** 4 / 192 + 1e-9


@pytest.mark.parametrize(("size", "stated"), [(1.0, 0.0053), (2.0, 0.0834)])
def test_the_stated_errors(size: float, stated: float) -> None:
    assert stated - 1e-4 < size**4 / 192 <= stated
    one = torch.tensor([[size]], dtype=torch.float64)
    exact = float(taylor_cross_entropy(one, torch.tensor(0)) - exact_cross_entropy(one, torch.tensor(0)))
    assert 0.5 * stated < exact <= stated, "and they are not far from the truth"


def test_losses_are_the_polynomials_of_the_functional_mechanism() -> None:
    generator = torch.Generator().manual_seed(4)
    features, weights = (torch.randn(n, 5, dtype=torch.float64, generator=generator) for n in (1, CLASSES))
    label = torch.tensor(3)
    polynomial = output_polynomial(features, label[None], CLASSES)
    assert torch.allclose(taylor_cross_entropy(features @ weights.T, label), polynomial.value(weights))
    inputs, tied = torch.rand(1, CLASSES, dtype=torch.float64, generator=generator), weights
    reconstructed = reconstruction_polynomial(inputs, features).value(tied)
    first_order = math.log(2) + (0.5 - inputs) * (features @ tied.T)
    assert torch.allclose(first_order.sum(), reconstructed)


def test_the_minimum_is_at_plus_and_minus_two() -> None:
    logits = torch.full((1, CLASSES), -2.0, dtype=torch.float64)
    logits[0, 1] = 2.0
    assert torch.func.jacrev(lambda z: taylor_cross_entropy(z, torch.tensor(1)))(logits).abs().max() == 0
    assert float(taylor_cross_entropy(logits, torch.tensor(1))) == pytest.approx(CLASSES * (math.log(2) - 0.5))


@pytest.mark.parametrize("classes", [2, 4, 10, 100])
def test_the_balanced_loss_is_the_same_objective_from_a_start_without_a_common_slope(classes: int) -> None:
    """At logits of 0 records of balanced classes ask for no change together; the loss as printed asks all for the same."""
    start, labels = torch.zeros(1, classes, dtype=torch.float64), torch.arange(classes)

    def slopes(loss: RecordLoss) -> Tensor:
        return torch.stack([torch.func.jacrev(lambda z, at=label: loss(z, at))(start)[0] for label in labels])

    balanced, printed = slopes(balanced_cross_entropy), slopes(taylor_cross_entropy)
    assert balanced.mean(0).abs().max() < 1e-12
    assert torch.allclose(balanced - balanced.mean(0), printed - printed.mean(0)), "what tells classes apart is unchanged"
    common = float(printed.mean(0).norm() / printed[0].norm())
    assert common == pytest.approx(1 - 2 / classes), "able to fail: of ten classes four fifths of each slope"
    logits = torch.randn(3, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    moved = logits + 4 / classes - 2
    assert torch.allclose(balanced_cross_entropy(logits, labels[1]), taylor_cross_entropy(moved, labels[1]))
    assert torch.equal(moved.argmax(1), logits.argmax(1))


PATHS: list[Callable[[nn.Module, RecordLoss], PerExamplePath]] = [FastPath, VmapPath]


@pytest.mark.parametrize("path", PATHS)
def test_per_example_gradients_are_those_of_one_record_at_a_time(
    path: Callable[[nn.Module, RecordLoss], PerExamplePath],
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
        inputs = torch.randn(4, COPIES, 6, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 1])
    sums = path(model, taylor_cross_entropy).gradients(inputs, labels)
    for record in range(4):
        weights = torch.zeros(4, dtype=torch.float64)
        weights[record] = 1.0
        loss = taylor_cross_entropy(model(inputs[record]), labels[record])
        wanted = torch.autograd.grad(loss, list(model.parameters()))
        for found, truth in zip(sums.weighted_sums(weights).values(), wanted, strict=True):
            assert torch.allclose(found, truth)
        assert torch.allclose(sums.losses[record], loss)
