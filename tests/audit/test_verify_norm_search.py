"""The search that runs the layer: never above the truth, and close to it where the truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from twinproof.audit.verify_norm_search import largest_output, reached_norm

Array = NDArray[np.float64]


def matrix_of(layer: nn.Module, shape: tuple[int, ...], scales: Array) -> Array:
    """The layer as a matrix, by passing unit vectors through it."""
    with torch.no_grad():
        outputs = layer(torch.eye(math.prod(shape)).view(-1, *shape)) - layer(torch.zeros(1, *shape))
    return np.asarray(outputs.flatten(1).double().numpy().T / scales[:, None])


def signs(count: int) -> Array:
    """Every sign pattern, as columns."""
    return np.array(list(itertools.product([-1.0, 1.0], repeat=count))).T


def norm_of(matrix: Array, source: str, order: int) -> float:
    """The operator norm by enumeration; from l2 to l1 it is that of the transpose from linf to l2."""
    if source == "l1":
        return float(np.linalg.norm(matrix, ord=order, axis=0).max())
    if source == "linf":
        return float(np.linalg.norm(matrix @ signs(matrix.shape[1]), ord=order, axis=0).max())
    return float(np.linalg.norm(matrix, ord=2) if order == 2 else np.linalg.norm(matrix.T @ signs(len(matrix)), axis=0).max())


# From l1 every corner is tried, and for 2->2 the ascent is the power method; the others are NP-hard.
CLOSE = {("l1", "l1"): 1 - 1e-6, ("l1", "l2"): 1 - 1e-6, ("l2", "l2"): 0.999}
LAYERS = [
    (nn.Linear(9, 7), (9,)),
    (nn.Conv2d(1, 4, 3, stride=2, padding=1), (1, 3, 3)),
    (nn.Conv1d(2, 4, 2, groups=2), (2, 5)),
]
KINDS = ["linear", "convolution", "grouped"]


@pytest.mark.parametrize("target", ["l1", "l2"])
@pytest.mark.parametrize("source", ["l1", "l2", "linf"])
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=KINDS)
def test_what_is_reached_is_the_norm_of_small_layers(
    layer: nn.Module, shape: tuple[int, ...], source: str, target: str
) -> None:
    torch.manual_seed(0)
    for weight in layer.parameters():
        nn.init.normal_(weight)
    outputs = layer(torch.zeros(1, *shape)).numel()
    scales = np.random.default_rng(2).uniform(0.5, 2, outputs).astype(np.float32).astype(np.float64)
    largest = norm_of(matrix_of(layer, shape, scales), source, int(target[1]))
    found = reached_norm(layer, shape, scales, source, target)
    assert largest * CLOSE.get((source, target), 0.9) <= found <= largest * (1 + 1e-6)
    assert reached_norm(layer, shape, 2 * scales, source, target) == pytest.approx(found / 2, rel=1e-12)


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=KINDS)
def test_the_largest_output_is_that_of_the_worst_input(layer: nn.Module, shape: tuple[int, ...]) -> None:
    scales = np.linspace(0.5, 2, layer(torch.zeros(1, *shape)).numel())
    corners = np.array(list(itertools.product([0.0, 1.0], repeat=math.prod(shape)))).T
    assert largest_output(layer, shape, scales) == pytest.approx(
        np.abs(matrix_of(layer, shape, scales) @ corners).max(), rel=1e-5
    )


def test_a_layer_that_ignores_its_input_reaches_nothing() -> None:
    layer = nn.Linear(4, 3)
    nn.init.zeros_(layer.weight)
    for source in ("l1", "l2", "linf"):
        assert reached_norm(layer, (4,), np.ones(3), source, "l2") == 0.0
