"""Operator norms found without the code under test: torch writes the matrix down, enumeration and ascents search it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]

ORDERS = {"l1": 1.0, "l2": 2.0, "linf": np.inf}
PAIRS = [(source, target) for source in ("l1", "l2", "linf") for target in ("l2", "l1")]
# Signs of so many coordinates can be tried one and all.
MOST_SIGNS = 12


@dataclass(frozen=True)
class Case:
    """A layer, the shape of its input and the numbers its outputs are divided by."""

    layer: nn.Module
    shape: tuple[int, ...]
    scale: Array | None = None


def dense(case: Case) -> Array:
    """(outputs, inputs), by passing unit vectors through the real layer in float64."""
    layer = case.layer.double()
    units = torch.eye(int(np.prod(case.shape)), dtype=torch.float64).reshape(-1, *case.shape)
    with torch.no_grad():
        answers = (layer(units) - layer(torch.zeros_like(units))).flatten(1).numpy().T
    return np.asarray(answers if case.scale is None else answers / case.scale.reshape(-1, 1))


def length(vectors: Array, norm: str) -> Array:
    return np.asarray(np.linalg.norm(vectors, ord=ORDERS[norm], axis=0))


def all_signs(count: int) -> Array:
    return np.array(list(itertools.product((-1.0, 1.0), repeat=count))).T


def exact_norm(matrix: Array, source: str, target: str) -> float | None:
    """The norm itself by corners of balls or by singular values; ``None`` where there are too many corners."""
    outputs, inputs = matrix.shape
    if source == "l1":
        return float(length(matrix, target).max())
    if source == "linf":
        return float(length(matrix @ all_signs(inputs), target).max()) if inputs <= MOST_SIGNS else None
    if target == "l2":
        return float(np.linalg.svd(matrix, compute_uv=False)[0])
    return float(length(matrix.T @ all_signs(outputs), "l2").max()) if outputs <= MOST_SIGNS else None


def searched_norm(matrix: Array, source: str, target: str, random: np.random.Generator, starts: int = 40) -> float:
    """The largest value that random inputs reach, before and after an ascent by the output's slope.

    Half of the starts are smoothed by the power method first: from plain noise an ascent over signs gets stuck early.
    """
    points = random.standard_normal((matrix.shape[1], starts))
    for _ in range(6):
        smooth = matrix.T @ (matrix @ points[:, ::2])
        points[:, ::2] = smooth / max(float(np.abs(smooth).max()), 1e-300)
    best = 0.0
    for _ in range(25):
        answers = matrix @ points
        best = max(best, float((length(answers, target) / np.maximum(length(points, source), 1e-300)).max()))
        slopes = matrix.T @ (np.sign(answers) if target == "l1" else answers)
        if source == "linf":
            points = np.where(slopes < 0, -1.0, 1.0)
        elif source == "l2":
            points = slopes / np.maximum(length(slopes, "l2"), 1e-300)
        else:
            points = np.zeros_like(slopes)
            points[np.abs(slopes).argmax(axis=0), np.arange(starts)] = 1
    return best


def random_case(random: np.random.Generator, *, most_inputs: int = 40) -> Case:
    """A linear layer or a convolution with settings at random; half of the time with a scale."""
    torch.manual_seed(int(random.integers(2**31)))
    layer: nn.Module
    shape: tuple[int, ...]
    if random.random() < 0.3:
        inputs, outputs = (int(value) for value in random.integers(1, 13, 2))
        layer, shape = nn.Linear(inputs, outputs), (inputs,)
    else:
        layer, shape = _random_convolution(random, most_inputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(float(10 ** random.uniform(-3, 3)))
        answers = layer(torch.zeros(1, *shape)).numel()
    scale = np.exp(random.normal(0, 1, answers)) if random.random() < 0.5 else None
    return Case(layer, shape, scale)


def _random_convolution(random: np.random.Generator, most_inputs: int) -> tuple[nn.Module, tuple[int, ...]]:
    while True:
        groups, per_group, out_per_group = (int(value) for value in random.integers(1, 3, 3))
        kernel, stride, padding, dilation = (int(value) for value in random.integers((1, 1, 0, 1), (4, 4, 3, 3)))
        flat = bool(random.random() < 0.5)
        sizes = tuple(int(value) for value in random.integers(1, 7, 1 if flat else 2))
        shape = (groups * per_group, *sizes)
        if np.prod(shape) <= most_inputs and min(sizes) + 2 * padding > dilation * (kernel - 1):
            kind = nn.Conv1d if flat else nn.Conv2d
            return kind(shape[0], groups * out_per_group, kernel, stride, padding, dilation, groups), shape
