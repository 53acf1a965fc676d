"""Small networks and data for the tests of attacks, and the independent library in the form the tests need."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.attacks.threat import Threat
from twinproof.keys import Key

KEY = Key.from_seed(4)
ORDERS: dict[str, float] = {"linf": np.inf, "l2": 2, "l1": 1}
FEATURES, CLASSES = 12, 4


def smooth_network(seed: int = 0, features: int = FEATURES, classes: int = CLASSES) -> nn.Module:
    """Differentiable everywhere, so that two libraries cannot fall on different sides of a kink."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, classes)).eval()


def batch_of(rows: int, seed: int = 1, *, low: float = 0.0, high: float = 1.0) -> tuple[Tensor, Tensor]:
    """Uniform inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(rows, FEATURES, generator=generator) * (high - low) + low
    return inputs, torch.randint(CLASSES, (rows,), generator=generator)


class NoisyInput(nn.Module):
    """A network whose first layer adds fresh noise to every row, in eval mode too, as a noise layer does."""

    def __init__(self, network: nn.Module, sigma: float) -> None:
        super().__init__()
        self.network, self.sigma = network, sigma

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.network(inputs + self.sigma * torch.randn_like(inputs))
        return scores


class Constant(nn.Module):
    """The same scores for everything, by way of the input, so that there is a gradient and it is zero."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1)[:, :1] * 0 + torch.arange(CLASSES, dtype=inputs.dtype)


@functools.cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images (rows, 64) in [0, 1] with their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    inputs = torch.tensor(found.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs, labels = inputs[order], labels[order]
    return inputs[:1200], labels[:1200], inputs[1200:], labels[1200:]


@functools.cache
def digits_network(sigma: float = 0.0) -> nn.Module:
    """Trained on digits, with noise on its inputs where it is to be smoothed; not to be changed by a test."""
    torch.manual_seed(0)
    inputs, labels, _, _ = digits()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(200):
        noisy = inputs + sigma * torch.randn_like(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(noisy), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad()
    return network.eval()


def art_classifier(model: nn.Module, inputs: Tensor, classes: int, threat: Threat) -> Any:
    """The network in the independent library."""
    from art.estimators.classification import PyTorchClassifier

    return PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(inputs.shape[1:]),
        nb_classes=classes,
        clip_values=(threat.low, threat.high),
        device_type="cpu",
    )


def float64_length(attacked: Tensor, original: Tensor, norm: str) -> np.ndarray[Any, Any]:
    """Lengths by numpy, which shares nothing with what is tested."""
    delta = attacked.numpy().astype(np.float64) - original.numpy().astype(np.float64)
    lengths: np.ndarray[Any, Any] = np.linalg.norm(delta.reshape(len(delta), -1), ord=ORDERS[norm], axis=1)
    return lengths
