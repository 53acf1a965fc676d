"""Certificates attacked at their radius: projected gradients with restarts find no flip, and do find some further out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification.interval import STEPS, IntervalNetwork

LEVELS, CLASSES = 255, 4


def _dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def _convolutional() -> nn.Sequential:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def _trained(seed: int, make: Callable[[], nn.Sequential], shape: tuple[int, ...]) -> tuple[nn.Sequential, Tensor]:
    """A network that tells noisy patterns apart, and inputs of it as levels."""
    torch.manual_seed(seed)
    network = make()
    patterns, size = torch.rand(CLASSES, *shape), 64 * CLASSES
    labels = torch.arange(size) % CLASSES
    inputs = ((patterns[labels] + 0.15 * torch.randn(size, *shape)).clamp(0, 1) * LEVELS).round()
    steps = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        steps.zero_grad()
        F.cross_entropy(network(inputs / LEVELS), labels).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return network.requires_grad_(False), inputs


def _flips(network: nn.Module, inputs: Tensor, answers: Tensor, sizes: Tensor, *, restarts: int, steps: int) -> int:
    """Inputs whose answer changes somewhere on the way of a projected gradient ascent in their own balls, cut to [0, 1]."""
    centre = (inputs / LEVELS).repeat(restarts, *(1,) * (inputs.ndim - 1))
    size = sizes.float().repeat(restarts).reshape(-1, *(1,) * (inputs.ndim - 1))
    low, high = (centre - size).clamp(min=0), (centre + size).clamp(max=1)
    own, flipped = answers.repeat(restarts), torch.zeros(len(centre), dtype=torch.bool)
    moved = low + torch.rand_like(low) * (high - low)
    for step in range(steps):
        moved.requires_grad_(True)
        scores = network(moved)
        flipped |= scores.detach().argmax(1) != own
        others = scores.scatter(1, own[:, None], -math.inf).amax(1)
        gradient = torch.autograd.grad((others - scores.gather(1, own[:, None])[:, 0]).sum(), moved)[0]
        pace = size * (0.5 if step < steps // 2 else 0.05)
        moved = torch.minimum(torch.maximum(moved.detach() + pace * gradient.sign(), low), high)
    flipped |= network(moved).argmax(1) != own
    return int(flipped.reshape(restarts, -1).any(0).sum())


def _attacked(seeds: range, *, restarts: int, steps: int, stretch: float = 1.0) -> tuple[int, int]:
    """Certificates attacked at ``stretch`` times their radius, and how many fell."""
    certificates = fallen = 0
    for seed in seeds:
        make, shape = ((_dense, (9,)), (_convolutional, (1, 3, 3)))[seed % 2]
        network, inputs = _trained(seed, make, shape)
        bounds = IntervalNetwork.of(network, shape)
        answers = bounds.answers(inputs, LEVELS)
        radii = bounds.radii(inputs, LEVELS, answers).double() / STEPS
        held = radii > 0
        certificates += int(held.sum())
        fallen += _flips(network, inputs[held], answers[held], stretch * radii[held], restarts=restarts, steps=steps)
    return certificates, fallen


def test_no_certificate_falls_at_its_radius() -> None:
    certificates, fallen = _attacked(range(8), restarts=20, steps=200)
    assert certificates >= 2_000
    assert fallen == 0


def test_the_attack_finds_what_is_there() -> None:
    certificates, fallen = _attacked(range(2), restarts=2, steps=20, stretch=2.0)
    assert fallen > 0.05 * certificates


@pytest.mark.slow
def test_no_certificate_falls_at_its_radius_under_a_long_attack() -> None:
    certificates, fallen = _attacked(range(8, 40), restarts=20, steps=1_000)
    assert certificates >= 8_000
    assert fallen == 0
