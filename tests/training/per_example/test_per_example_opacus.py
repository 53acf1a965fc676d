"""The clipped sum agrees with Opacus on the same weights and batch."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from opacus import GradSampleModule
from per_example_oracle import mean_loss
from torch import Tensor, nn
from torch.nn import functional

from twinproof.training.per_example import choose_path

CLIP = 0.5
CLASSES = 10


def small_cnn() -> nn.Module:
    """The usual small network for 28 x 28 images in private training."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, CLASSES),
    ).double()  # in float32 two nearly equal inputs of a max-pool may be told apart differently


def opacus_clipped_sum(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Copies flattened, per-row gradients averaged over a record's copies, clipped, summed."""
    number, copies = inputs.shape[:2]
    module = GradSampleModule(copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = functional.cross_entropy(module(inputs.flatten(0, 1)), labels.repeat_interleave(copies))
        torch.autograd.backward(loss)
    gradients = {
        name: parameter.grad_sample.view(number, copies, *parameter.shape).mean(1)
        for name, parameter in module._module.named_parameters()
    }
    norms = torch.stack([value.flatten(1).norm(dim=1) for value in gradients.values()], 1).norm(dim=1)
    weights = (CLIP / norms).clamp(max=1)
    return {name: torch.einsum("m,m...->...", weights, value) for name, value in gradients.items()}


@pytest.mark.parametrize("path", ["fast", "vmap"])
@pytest.mark.parametrize("copies", [1, 3])
def test_clipped_sum_agrees_with_opacus(path: str, copies: int) -> None:
    model = small_cnn()
    generator = torch.Generator().manual_seed(4)
    inputs = torch.rand(12, copies, 1, 28, 28, generator=generator, dtype=torch.float64)
    inputs *= torch.linspace(0.0, 2.0, 12, dtype=torch.float64)[:, None, None, None, None]
    labels = torch.randint(0, CLASSES, (12,), generator=generator)
    chosen = choose_path(model, mean_loss, (1, 28, 28), CLASSES, copies=copies, path="fast" if path == "fast" else "vmap")
    gradients = chosen.gradients(inputs, labels)
    norms = gradients.squared_norms().sqrt()
    weights = (CLIP / norms).clamp(max=1)
    assert int((weights < 1).sum()) > 0, "the clip must act on some records"
    wanted = opacus_clipped_sum(model, inputs, labels)
    for name, gradient in gradients.by_name.items():
        torch.testing.assert_close(gradient.weighted_sum(weights), wanted[name], rtol=1e-9, atol=1e-12)
