"""Losses and gradients over draws against plain autograd; a network is left as it was found."""

from __future__ import annotations

import math

import pytest
import torch
from attack_problems import CLASSES, NoisyInput, batch_of, smooth_network
from torch import Tensor, nn

from twinproof.attacks.objective import Expectation, Mean, Objective, Plain, Smoothed, untouched
from twinproof.attacks.search import Look, Looker, class_count
from twinproof.errors import ConfigError, ModelError


def look(objective: Objective, inputs: Tensor, labels: Tensor, seed: int = 3) -> Look:
    with untouched(objective.model):
        torch.manual_seed(seed)
        return Looker(objective, inputs, torch.Generator().manual_seed(seed)).step(inputs, labels)


def by_hand(model: nn.Module, copies: Tensor, labels: Tensor, mean: Mean) -> Tensor:
    """The loss of each row, straight from its definition, in double precision; ``copies`` (rows, draws, features)."""
    probability = model(copies.flatten(0, 1)).view(*copies.shape[:2], -1).softmax(dim=2)
    of_label = probability.gather(2, labels.view(-1, 1, 1).expand(-1, copies.shape[1], 1)).squeeze(2)
    loss: Tensor = -of_label.log().mean(dim=1) if mean is Mean.LOSS else -of_label.mean(dim=1).log()
    return loss


def test_plain_is_cross_entropy_and_its_gradient() -> None:
    model, (inputs, labels) = smooth_network(), batch_of(6)
    got = look(Plain(model), inputs, labels)
    leaf = inputs.clone().requires_grad_()
    losses = nn.functional.cross_entropy(model(leaf), labels, reduction="none")
    torch.testing.assert_close(got.losses, losses.detach())
    torch.testing.assert_close(got.gradient, torch.autograd.grad(losses.sum(), leaf)[0])
    assert torch.equal(got.predictions, model(inputs).argmax(dim=1))


@pytest.mark.parametrize(("shared", "most_rows"), [(False, None), (True, None), (True, 1), (True, 18), (True, 30)])
def test_smoothed_is_the_log_of_the_mean_probability(shared: bool, most_rows: int | None) -> None:
    """Whatever the chunks; fresh noise is drawn chunk by chunk, so that its numbers are known for one chunk only."""
    model, (inputs, labels) = smooth_network().double(), batch_of(6)
    inputs = inputs.double()
    got = look(Smoothed(model, 0.5, 7, shared=shared, most_rows=most_rows), inputs, labels)
    noise = torch.randn(6, 7, inputs.shape[1], generator=torch.Generator().manual_seed(3), dtype=inputs.dtype) * 0.5
    leaf = inputs.clone().requires_grad_()
    losses = by_hand(model, leaf.unsqueeze(1) + noise, labels, Mean.PROBABILITY)
    torch.testing.assert_close(got.losses, losses.detach())
    torch.testing.assert_close(got.gradient, torch.autograd.grad(losses.sum(), leaf)[0])


@pytest.mark.parametrize("mean", list(Mean))
def test_expectation_draws_from_the_networks_own_layers(mean: Mean) -> None:
    network, (inputs, labels) = smooth_network(), batch_of(6)
    got = look(Expectation(NoisyInput(network, 0.5), 9, mean), inputs, labels)
    torch.manual_seed(3)
    noise = 0.5 * torch.randn(6 * 9, inputs.shape[1])
    leaf = inputs.clone().requires_grad_()
    losses = by_hand(network, leaf.unsqueeze(1) + noise.view(6, 9, -1), labels, mean)
    torch.testing.assert_close(got.losses, losses.detach())
    torch.testing.assert_close(got.gradient, torch.autograd.grad(losses.sum(), leaf)[0])


def test_tiny_probabilities_do_not_underflow() -> None:
    """A probability of exp(-400) is no float32, and still has a logarithm and a gradient."""
    sure = nn.Linear(12, CLASSES)
    with torch.no_grad():
        sure.weight.mul_(0.1)
        sure.bias.copy_(torch.tensor([400.0, 0.0, 0.0, 0.0]))
    inputs, _ = batch_of(3)
    got = look(Smoothed(sure, 0.25, 8, most_rows=6), inputs, torch.full((3,), 1))
    assert got.gradient is not None
    assert ((got.losses - 400).abs() < 5).all()
    assert got.gradient.isfinite().all()
    assert (got.gradient.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("mean", list(Mean))
def test_memory_is_bounded_by_rows(mean: Mean) -> None:
    seen: list[int] = []

    class Counting(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(len(inputs))
            return inputs[:, :CLASSES]

    inputs, labels = batch_of(10)
    look(Expectation(Counting(), 13, mean, most_rows=40), inputs, labels)
    assert max(seen) <= 40
    assert sum(seen) == 130


def test_a_row_depends_on_itself_alone() -> None:
    """Other rows change, this one's loss and gradient do not; a network that mixes rows is told apart by the same check."""

    def gradients(model: nn.Module, others: int) -> Tensor:
        inputs, labels = batch_of(5)
        inputs[1:], labels[1:] = batch_of(4, seed=others)
        gradient = look(Smoothed(model, 0.3, 4), inputs, labels).gradient
        assert gradient is not None
        return gradient[0]

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = smooth_network()

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.network(inputs - inputs.mean(dim=0))
            return scores

    assert torch.equal(gradients(smooth_network(), 7), gradients(smooth_network(), 8))
    assert not torch.equal(gradients(Mixing(), 7), gradients(Mixing(), 8))


@pytest.mark.parametrize("kind", [Plain, Expectation, lambda model: Smoothed(model, 0.2, 3)])
def test_the_network_is_left_as_it_was(kind: type[Plain]) -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.Dropout(), nn.Linear(8, CLASSES)).train()
    model[2].eval()
    model[0].bias.requires_grad_(False)
    for number, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, float(number))
    inputs, labels = batch_of(4)
    look(kind(model), inputs, labels)
    assert [module.training for module in model] == [True, True, False]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True, True]
    for number, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, torch.full_like(parameter, float(number)))
    assert not inputs.requires_grad


def test_the_network_is_restored_after_an_error() -> None:
    model = smooth_network().train()
    with pytest.raises(RuntimeError), untouched(model):
        model(torch.zeros(1, 3))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_judging_uses_the_same_draws_every_time_and_no_generator_of_others() -> None:
    objective, (inputs, labels) = Expectation(NoisyInput(smooth_network(), 0.5), 2), batch_of(4)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with untouched(objective.model):
        looker = Looker(objective, inputs, torch.Generator().manual_seed(0), 11)
        first, second = looker.judge(inputs, labels), looker.judge(inputs, labels)
    assert torch.equal(first.losses, second.losses)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("forward", "got"),
    [
        (lambda x: x[:, 0], "shape"),
        (lambda x: x[:1], "shape"),
        (lambda x: x[:, :1], "shape"),
        (lambda x: (x, x), "tuple"),
        (lambda x: x[:, :, None], "shape"),
    ],
)
def test_wrong_outputs(forward: object, got: str) -> None:
    class Wrong(nn.Module):
        def forward(self, inputs: Tensor) -> object:
            assert callable(forward)
            return forward(inputs)

    inputs, labels = batch_of(3)
    with pytest.raises(ModelError, match=rf"one score per class(.|\n)*{got}"):
        look(Plain(Wrong()), inputs, labels)


def test_class_count() -> None:
    assert class_count(Plain(smooth_network()), batch_of(2)[0]) == CLASSES


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda m: Smoothed(m, 0.0), "sigma cannot"),
        (lambda m: Smoothed(m, math.nan), "sigma cannot"),
        (lambda m: Smoothed(m, 0.1, 0), "draws cannot be used"),
        (lambda m: Expectation(m, -1), "draws cannot be used"),
        (lambda m: Expectation(m, judged_on=0), "judged_on cannot be used"),
        (lambda m: Expectation(m, mean="median"), "mean cannot"),  # type: ignore[arg-type]
        (lambda m: Smoothed(m, 0.1, most_rows=0), "most_rows cannot be used"),
    ],
)
def test_bad_settings(make: object, match: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=match):
        make(smooth_network())
