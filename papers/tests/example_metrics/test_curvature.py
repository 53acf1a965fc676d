"""Norms of gradients and Hessians against closed forms and dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from twinproof.errors import ConfigError, DataError, ModelError, UserError
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, NoiseLayer, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof_papers.example_metrics.curvature import (
    HessianNorms,
    Iteration,
    hessian_norms_of,
    input_gradient_norms,
    input_hessian_norms,
)

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


@pytest.mark.parametrize("name", SHAPES)
def test_slopes_are_those_of_each_example_alone(name: str) -> None:
    """Planted: the slope of the batch's mean loss, too small by the number of rows."""
    model, (inputs, labels) = network(name), examples(SHAPES[name])
    truth = one_by_one(model, inputs, labels)
    torch.testing.assert_close(input_gradient_norms(model, inputs, labels), truth, rtol=1e-4, atol=0)
    leaf = inputs.clone().requires_grad_()
    (planted,) = torch.autograd.grad(cross_entropy(model(leaf), labels), leaf)
    assert not torch.allclose(planted.flatten(1).double().norm(dim=1), truth, rtol=1e-4)


@pytest.mark.parametrize("margin", [5.0, 60.0])
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
        ({"batch_size": 0}, ConfigError, "batch cannot"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, object], error: type[UserError], words: str) -> None:
    given: dict[str, object] = {"model": nn.Linear(12, 4), "inputs": torch.zeros(2, 12), "labels": torch.tensor([0, 1])}
    with pytest.raises(error, match=words):
        input_gradient_norms(**{**given, **change})  # type: ignore[arg-type]


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Trained a little away from their start: at small weights all curvature is the loss's own, and positive."""
    torch.manual_seed(5)
    made: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "tanh": (nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)), (3, 2, 2)),
        "max-pooling": (build_network("tramer-boneh-cnn", (1, 20, 20), 3), (1, 20, 20)),
    }
    for model, _ in made.values():
        for parameter in model.parameters():
            parameter.data *= 2.5
    return made


NETWORKS = networks()


def _loss(model: nn.Module, label: Tensor, x: Tensor) -> Tensor:
    return cross_entropy(model(x[None]), label[None])


def spectra(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """All eigenvalues of each example's Hessian, written out in float64: (examples, coordinates), growing."""
    wide, size = model.double(), inputs[0].numel()
    found = []
    for row, label in zip(inputs.double(), labels, strict=True):
        loss = partial(_loss, wide, label)
        hessian = torch.autograd.functional.hessian(loss, row)  # type: ignore[no-untyped-call]
        found.append(torch.linalg.eigvalsh(hessian.reshape(size, size)))
    model.float()
    return torch.stack(found)


@pytest.mark.parametrize("name", NETWORKS)
def test_norms_are_those_of_written_out_hessians(name: str) -> None:
    model, shape = NETWORKS[name]
    inputs, labels = examples(shape, 3, classes=3)
    truth = spectra(model, inputs, labels)
    found = input_hessian_norms(model, inputs, labels)
    assert bool(found.converged.all())
    norm = truth.abs().amax(dim=1)
    torch.testing.assert_close(found.spectral, norm, rtol=1e-3, atol=0)
    assert float(((found.largest - truth[:, -1]).abs() / norm).max()) < 1e-3


def quadratic(*eigenvalues: float) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with these eigenvalues in a random basis, and a point."""
    generator = torch.Generator().manual_seed(2)
    basis = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), generator=generator, dtype=torch.float64))[0]
    return basis @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ basis.T, torch.randn(
        1, len(eigenvalues), generator=generator, dtype=torch.float64
    )


EXACT = Iteration(tolerance=1e-4, most_steps=2000)


def norms_of(matrix: Tensor, point: Tensor, settings: Iteration = EXACT) -> HessianNorms:
    def losses(x: Tensor, y: Tensor) -> Tensor:
        return ((x @ matrix) * x).sum(dim=1) / 2

    return hessian_norms_of(losses, point, torch.zeros(len(point), dtype=torch.int64), settings)


SPECTRA = {
    "positive": (3.0, 1.0, 0.5, 0.0),
    "negative dominates": (-5.0, 2.0, 1.0, 0.0, -1.0),
    "only negative": (-4.0, -3.0, -1.0),
    "opposite twins": (2.0, -2.0, 1.0),
    "nearly twins": (2.0, -2.0001, 1.0, 0.3),
    "a small positive one in the shadow": (-1.0, 0.02, *[0.0] * 30),
    "nothing": (0.0, 0.0, 0.0),
    "tiny": (-5e-30, 2e-30, 1e-30),
    "double": (4.0, 4.0, -3.9, 1.0),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_quadratics_of_known_spectrum(name: str) -> None:
    eigenvalues = SPECTRA[name]
    found = norms_of(*quadratic(*eigenvalues))
    scale = max(map(abs, eigenvalues))
    assert float(found.spectral) == pytest.approx(scale, rel=2e-4)
    assert float(found.largest) == pytest.approx(max(eigenvalues), abs=2e-4 * scale)
    assert bool(found.converged)


def test_the_iteration_does_not_stop_in_the_middle_of_the_spectrum() -> None:
    """Among 300 flat directions every residual is below a thousandth of the shift, long before the largest one is found."""
    matrix, point = quadratic(-1.0, 0.01, *[0.0] * 300)
    found = norms_of(matrix, point, Iteration(tolerance=1e-3, most_steps=2000))
    assert float(found.largest) == pytest.approx(0.01, rel=1e-3)
    assert bool(found.converged)


Estimate = Callable[[Tensor, Tensor], float]


def largest_for_norm(matrix: Tensor, point: Tensor) -> float:
    """Planted: the published code's number, the largest eigenvalue with its sign."""
    return float(norms_of(matrix, point).largest)


def plain_iteration(matrix: Tensor, point: Tensor) -> float:
    """Planted: v'Hv of an iteration on H itself, which turns between opposite twins."""
    vector = torch.ones(len(matrix), dtype=torch.float64)
    for _ in range(500):
        vector = matrix @ vector
        vector = vector / vector.norm()
    return abs(float(vector @ matrix @ vector))


def our_norm(matrix: Tensor, point: Tensor) -> float:
    return float(norms_of(matrix, point).spectral)


@pytest.mark.parametrize(
    ("estimate", "wrong_on"),
    [
        (our_norm, set()),
        (largest_for_norm, {"negative dominates", "only negative", "a small positive one in the shadow", "tiny"}),
        (plain_iteration, {"opposite twins", "nearly twins"}),
    ],
)
def test_planted_norms_are_caught(estimate: Estimate, wrong_on: set[str]) -> None:
    wrong = set()
    for name, eigenvalues in SPECTRA.items():
        scale = max(map(abs, eigenvalues))
        if scale and abs(estimate(*quadratic(*eigenvalues)) - scale) > 1e-3 * scale:
            wrong.add(name)
    assert wrong == wrong_on


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_cut_short_it_says_so_and_never_overstates(steps: int) -> None:
    """Whenever the iteration stops, an eigenvalue lies within the residual, and no value is above the truth."""
    for eigenvalues in ((-5.0, 2.0, 1.0, 0.0, -1.0), (3.0, 2.9, -2.8, 0.1), (-1.0, -0.99, 0.5, 0.49)):
        found = norms_of(*quadratic(*eigenvalues), Iteration(tolerance=1e-9, most_steps=steps))
        spectrum = torch.tensor(eigenvalues, dtype=torch.float64)
        assert float(found.spectral) <= float(spectrum.abs().max()) * (1 + 1e-9)
        assert float(found.largest) <= float(spectrum.max()) + 1e-9
        assert float(found.largest.abs()) <= float(found.spectral)
        assert float((spectrum.abs() - found.spectral).abs().min()) <= float(found.spectral_residual) + 1e-9
        assert float((spectrum - found.largest).abs().min()) <= float(found.largest_residual) + 1e-9
        assert bool(found.converged) == (max(float(found.spectral_residual), float(found.largest_residual)) < 1e-7)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("score", [0.0, 30.0])
def test_the_curvature_of_a_sure_network_keeps_its_leading_digits(score: float, label: int) -> None:
    """Scores (s + x, -s - x) at x = 0: the curvature is 4 p (1 - p), with 1 - p down to 9e-27.

    Surely wrong (class 1), the slope is about 1 and the curvature its rounding: right to 1e-15.
    """
    model = nn.Linear(1, 2)
    model.weight.data, model.bias.data = torch.tensor([[1.0], [-1.0]]), torch.tensor([score, -score])
    found = input_hessian_norms(model, torch.zeros(1, 1), torch.tensor([label]))
    miss = torch.sigmoid(torch.tensor(-2 * score, dtype=torch.float64))
    torch.testing.assert_close(found.spectral[0], 4 * miss * (1 - miss), rtol=1e-5, atol=1e-15 * label)
    torch.testing.assert_close(found.largest, found.spectral, rtol=1e-9, atol=1e-15 * label)


class Root(nn.Module):
    """Has no second derivative at 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.abs().sqrt(), -x], dim=1)


def test_bad_settings_and_endless_curvature_are_refused() -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        Iteration(tolerance=0)
    with pytest.raises(ConfigError, match="most_steps"):
        Iteration(most_steps=0)
    with pytest.raises(ModelError, match="not finite"):
        input_hessian_norms(Root(), torch.zeros(1, 1), torch.tensor([0]))
