"""The update is the optimiser's own step on the gradients it is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from twinproof.training.loop import Update

Maker = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Maker] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.3),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def _model(device: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_is_the_optimisers(name: str, device: str) -> None:
    ours, theirs = _model(device), _model(device)
    update, plain = Update(ours, OPTIMIZERS[name](ours)), OPTIMIZERS[name](theirs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        gradients = {
            key: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(device)
            for key, value in ours.named_parameters()
            if value.requires_grad
        }
        update(gradients)
        for key, value in theirs.named_parameters():
            value.grad = gradients[key].to(value) if key in gradients else None
        plain.step()
    for (key, value), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(value, other), key
