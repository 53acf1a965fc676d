"""An independent search for inputs that a layer stretches much: it runs the layer, and can only find too little.

Each step goes to the point of the unit ball where the length of the output, linearised at the last point, is largest. That
never shortens the output, as a norm is convex. From l1 no search is needed: the ball's corners are tried one by one.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

STARTS, STEPS = 32, 40
# Corners of the l1 ball that are passed through the layer at once, and at most.
_TOGETHER, _MOST_CORNERS = 64, 2**14
# The product of a float64 layer, and the quotient of two norms.
_FLOAT_ERROR = 1e-10


def reached_norm(layer: nn.Module, shape: tuple[int, ...], scales: NDArray[np.float64], source: str, target: str) -> float:
    """The largest |A x|_target / |x|_source that is found, A being ``layer`` without bias and divided by ``scales``."""
    import torch

    plain = linear_part(layer)
    divisor = torch.from_numpy(scales)
    if source == "l1" and math.prod(shape) <= _MOST_CORNERS:
        return _longest_corner(plain, shape, divisor, target) * (1 - _FLOAT_ERROR)
    generator = torch.Generator().manual_seed(7)
    points = _onto_ball(torch.randn((STARTS, *shape), generator=generator, dtype=torch.float64), source)
    best = 0.0
    for _ in range(STEPS):
        points.requires_grad_(True)
        lengths = _lengths(plain(points).flatten(1) / divisor, target)
        best = max(best, float((lengths / _lengths(points.flatten(1), source)).max().detach()))
        (slopes,) = torch.autograd.grad(lengths.sum(), points)
        points = _onto_ball(slopes, source)
    return best * (1 - _FLOAT_ERROR)


def largest_output(layer: nn.Module, shape: tuple[int, ...], scales: NDArray[np.float64]) -> float:
    """The largest magnitude that an output without bias, divided by its scale, can have for inputs in [0, 1]."""
    import torch

    plain = linear_part(layer)
    largest = 0.0
    with torch.no_grad():
        weight = plain.get_parameter("weight")
        for part in (weight.clamp(min=0), (-weight).clamp(min=0)):
            signed = copy.deepcopy(plain)
            signed.get_parameter("weight").copy_(part)
            answers = signed(torch.ones((1, *shape), dtype=torch.float64)).flatten() / torch.from_numpy(scales)
            largest = max(largest, float(answers.max()))
    return largest


def linear_part(layer: nn.Module) -> nn.Module:
    """A copy without bias, in float64, which holds the weights exactly."""
    plain = copy.deepcopy(layer).cpu().double()
    plain.register_parameter("bias", None)
    return plain


def _longest_corner(layer: nn.Module, shape: tuple[int, ...], divisor: Tensor, target: str) -> float:
    """The longest output of one coordinate alone."""
    import torch

    size, best = math.prod(shape), 0.0
    for first in range(0, size, _TOGETHER):
        places = torch.arange(first, min(first + _TOGETHER, size))
        corners = torch.zeros((len(places), size), dtype=torch.float64)
        corners[torch.arange(len(places)), places] = 1.0
        with torch.no_grad():
            outputs = layer(corners.view(-1, *shape)).flatten(1) / divisor
        best = max(best, float(_lengths(outputs, target).max()))
    return best


def _lengths(rows: Tensor, norm: str) -> Tensor:
    import torch

    order = {"l1": 1.0, "l2": 2.0, "linf": float("inf")}[norm]
    lengths: Tensor = torch.linalg.vector_norm(rows, ord=order, dim=1)
    return lengths


def _onto_ball(slopes: Tensor, norm: str) -> Tensor:
    """Where each linear function is largest on the unit ball; all of them somewhere, also for a slope of 0."""
    import torch

    flat = slopes.detach().flatten(1)
    if norm == "linf":
        found = torch.where(flat < 0, -1.0, 1.0).to(flat.dtype)
    elif norm == "l1":
        found = torch.zeros_like(flat)
        found[torch.arange(len(flat)), flat.abs().argmax(dim=1)] = 1.0
    else:
        found = flat + torch.finfo(flat.dtype).tiny
        found = found / torch.linalg.vector_norm(found, dim=1, keepdim=True)
    return found.view(slopes.shape)
