"""Input gradient norms against closed forms and one-by-one derivatives; sure networks, noise layers, planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from twinproof.errors import ConfigError, DataError, ModelError, UserError
from twinproof.layers.models.registry import build_network
from twinproof.layers.noise import Law, NoiseLayer, UniformSpread, add_noise
from twinproof_papers.example_metrics.curvature import input_gradient_norms

Norms = Callable[[nn.Module, Tensor, Tensor], Tensor]
SHAPES = {"mlp": (3, 2, 2), "small-cnn": (1, 5, 5), "tramer-boneh-cnn": (1, 20, 20)}


def examples(shape: tuple[int, ...], count: int = 7, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand((count, *shape), generator=generator), torch.randint(classes, (count,), generator=generator)


def network(name: str, classes: int = 4) -> nn.Module:
    torch.manual_seed(1)
    return build_network(name, SHAPES[name], classes)


def one_by_one(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The definition, a row at a time, all in float64."""
    wide = model.double().eval()
    norms = []
    for row, label in zip(inputs.double(), labels, strict=True):
        slope = torch.func.grad(lambda x, y: cross_entropy(wide(x[None]), y[None]))(row, label)
        norms.append(slope.square().sum().sqrt())
    model.float()
    return torch.stack(norms).detach()


def agrees(norms: Norms, name: str) -> bool:
    model, (inputs, labels) = network(name), examples(SHAPES[name])
    return torch.allclose(norms(model, inputs, labels), one_by_one(model, inputs, labels), rtol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_norms_are_those_of_each_example_alone(name: str) -> None:
    assert agrees(input_gradient_norms, name)


def batch_mean(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Planted: the slope of the batch's mean loss, too small by the number of rows."""
    leaf = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cross_entropy(model(leaf), labels), leaf)
    return slope.flatten(1).double().square().sum(dim=1).sqrt()


def mean_over_classes(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Planted: the slope of -log p averaged over all classes, which does not know the label."""
    leaf = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(-model(leaf).log_softmax(dim=1).mean(dim=1).sum(), leaf)
    return slope.flatten(1).double().square().sum(dim=1).sqrt()


def last_axis_only(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Planted: the norm along one axis instead of over all coordinates."""
    leaf = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cross_entropy(model(leaf), labels, reduction="sum"), leaf)
    return slope.double().square().sum(dim=1).sqrt().flatten(1).amax(dim=1)


@pytest.mark.parametrize("planted", [batch_mean, mean_over_classes, last_axis_only])
def test_planted_norms_are_caught(planted: Norms) -> None:
    assert not agrees(planted, "mlp")


def test_a_linear_network_has_the_closed_form() -> None:
    """The slope of CE for scores W x is W'(p - e_y)."""
    torch.manual_seed(0)
    model, (inputs, labels) = nn.Linear(6, 3, bias=False), examples((6,), classes=3)
    weight = model.weight.detach().double()
    excess = (inputs.double() @ weight.T).softmax(dim=1) - torch.eye(3).double()[labels]
    torch.testing.assert_close(input_gradient_norms(model, inputs, labels), (excess @ weight).norm(dim=1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("margin", [5.0, 20.0, 40.0, 60.0])
def test_a_sure_network_keeps_its_leading_digits(margin: float) -> None:
    """Scores (m x, -m x): the slope is 2 m sigmoid(-2 m x), far below what the textbook form can tell from zero."""
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[margin], [-margin]])
    inputs, labels = torch.tensor([[0.5]]), torch.tensor([0])
    exact = 2 * margin * torch.sigmoid(torch.tensor(-margin, dtype=torch.float64))
    torch.testing.assert_close(input_gradient_norms(model, inputs, labels)[0], exact, rtol=1e-5, atol=0)
    if margin >= 20:
        leaf = inputs.clone().requires_grad_()
        (textbook,) = torch.autograd.grad(cross_entropy(model(leaf), labels), leaf)
        assert abs(float(textbook) + float(exact)) > 0.05 * float(exact), "the usual form would fail this test"


def test_the_size_of_the_batches_changes_nothing_and_the_model_is_left_alone() -> None:
    model, (inputs, labels) = network("small-cnn"), examples(SHAPES["small-cnn"])
    model.train()
    next(model.parameters()).requires_grad_(False)
    before = [(parameter.requires_grad, parameter.clone()) for parameter in model.parameters()]
    whole = input_gradient_norms(model, inputs, labels)
    torch.testing.assert_close(input_gradient_norms(model, inputs, labels, batch_size=3), whole, rtol=1e-5, atol=0)
    assert model.training
    assert all(
        parameter.requires_grad == learns and parameter.grad is None and torch.equal(parameter, value)
        for parameter, (learns, value) in zip(model.parameters(), before, strict=True)
    )


def test_noise_layers_are_silent_and_dropout_is_off() -> None:
    bare, (inputs, labels) = network("mlp"), examples(SHAPES["mlp"])
    noisy = add_noise(
        bare, (12,), "input", lambda shape: NoiseLayer(SHAPES["mlp"], Law.GAUSSIAN, 1.0, UniformSpread(SHAPES["mlp"]))
    )
    expected = input_gradient_norms(bare, inputs, labels)
    torch.testing.assert_close(input_gradient_norms(noisy, inputs, labels), expected, rtol=0, atol=0)
    dropping = nn.Sequential(nn.Dropout(0.5), bare).train()
    torch.testing.assert_close(input_gradient_norms(dropping, inputs, labels), expected, rtol=0, atol=0)


class Drawing(nn.Module):
    """Draws in eval mode too, and is no noise layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": nn.Sequential(Drawing(), nn.Linear(12, 4))}, ModelError, "answers at random"),
        ({"model": nn.Linear(12, 1)}, ModelError, "one score per class"),
        ({"inputs": torch.zeros(2, 12, dtype=torch.int64)}, DataError, "cannot be measured"),
        ({"inputs": torch.zeros(0, 12)}, DataError, "cannot be measured"),
        ({"inputs": torch.full((2, 12), float("nan"))}, DataError, "not finite"),
        ({"labels": torch.tensor([0, 4])}, DataError, "no class of the network"),
        ({"labels": torch.tensor([0])}, DataError, "labels do not fit"),
        ({"batch_size": 0}, ConfigError, "batch size"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, object], error: type[UserError], words: str) -> None:
    given: dict[str, object] = {"model": nn.Linear(12, 4), "inputs": torch.zeros(2, 12), "labels": torch.tensor([0, 1])}
    with pytest.raises(error, match=words):
        input_gradient_norms(**{**given, **change})  # type: ignore[arg-type]


def test_nan_weights_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="NaN scores"):
        input_gradient_norms(model, torch.zeros(1, 2), torch.tensor([0]))
