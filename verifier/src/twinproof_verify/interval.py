"""Interval bounds: whether a network of floats answers alike for every input of a ball, from weights and the stored input.

Only claims are checked: a radius is tried at its own size, once. Every layer is written down as a matrix A and a vector b, and
the ends of its outputs are found from the ends l <= x <= u of its inputs by the signs of the entries,

    A+ l + A- u + b - e   and   A+ u + A- l + b + e,        A+ = max(A, 0), A- = min(A, 0),

where e pays for every rounding. Let M = |A| max(|l|, |u|) + |b|, n the number of products in one sum, u the unit roundoff.

- The network adds up n products and b in some order. Every product passes through at most n + 1 roundings, so the sum is off by
  at most ((1 + u)^{n+1} - 1) M <= g M with g = (n+1) u / (1 - (n+1) u), u = 2^-24: float32, in any order, fused or not, of
  direct sums or matrix products. TF32, bfloat16, Winograd's and Fourier transforms err more and are not covered.
- Each of the n products, n sums, n inputs and n weights may be taken for zero if below h = 2^-126 in magnitude, where a
  processor does so: h (2 n + 2 + sum |x| + sum |A|) at most, paid twice. From M = 2^126 on a float32 may overflow: nothing
  is decided.
- These lines are evaluated in float64 in the same way: each of three products with x and b is off by g' M, g' = g with 2^-53;
  M itself may come out smaller by a share of 2 g'; and two last additions. 4 n + 32 roundings are more than these together.

Classes are compared by the rows of the last layer: z_y - z_j is one sum with A_y - A_j, whose entries are off by one rounding
each, and both z_y and z_j are rounded by the network, so that e is that of both rows.

An input is k / levels, in the network rounded (two roundings where it is a product with 1 / levels), moved by up to the radius,
cut to [0, 1] and rounded again: its interval is longer by 3 u at both ends and never leaves [0, 1].

A certificate made with the same g, n and M, but with more than 4 n + 32 roundings of float64 to spare at each layer, holds here
too: wider boxes never decide more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from twinproof_verify.evidence import Tensors
from twinproof_verify.layers import Array, First, LayerError, Matrix, magnitudes, numbers

FLOAT32, FLOAT64 = 2.0**-24, 2.0**-53
FLUSHED = 2.0**-126
OVERFLOWS = 2.0**126
INPUT_SHARE = 3 * FLOAT32 + 2.0**-50
# Inputs whose bounds are computed together: the columns of one matrix.
_TOGETHER = 250

Flags = NDArray[np.bool_]

RELU, CONTRAST = "relu", "contrast"
BOUNDED: dict[str, tuple[First | str, ...]] = {
    "relu-mlp": (First("1"), RELU, First("3")),
    "interval-cnn": (
        First("0", (2, 2), (2, 2)),
        RELU,
        First("2", (2, 2), (1, 1)),
        RELU,
        First("5"),
        RELU,
        First("7"),
    ),
    "contrast-cnn": (
        CONTRAST,
        First("1", (2, 2), (2, 2)),
        RELU,
        First("3", (2, 2), (1, 1)),
        RELU,
        First("6"),
        RELU,
        First("8"),
    ),
}
"""The layers of networks of this package that have interval bounds; sizes are those of their weights."""


def roundings(count: int, unit: float) -> float:
    """The relative error of so many roundings in a row."""
    return count * unit / (1 - count * unit)


def relu(low: Array, high: Array) -> tuple[Array, Array]:
    """Exact, and monotone."""
    return np.maximum(low, 0), np.maximum(high, 0)


def contrast(low: Array, high: Array) -> tuple[Array, Array]:
    """16 (x - 1/2) + 1/2 cut to [0, 1]. Monotone; a float32 rounds once where it is not cut, as x - 1/2 is exact there."""
    return np.clip(16 * low - 7.5 - FLOAT32, 0, 1), np.clip(16 * high - 7.5 + FLOAT32, 0, 1)


def _signs(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """A+ and A-."""
    if isinstance(matrix, np.ndarray):
        return np.maximum(matrix, 0), np.minimum(matrix, 0)
    return sparse.csr_array(matrix.maximum(0)), sparse.csr_array(matrix.minimum(0))


@dataclass(frozen=True, eq=False)
class Sums:
    """One layer: a ``matrix`` (outputs, inputs), a ``bias`` (outputs, 1), and how many products a sum of the network has."""

    matrix: Matrix
    bias: Array
    terms: int

    @property
    def share(self) -> float:
        """What the network and this page may err, for M = 1."""
        return roundings(self.terms + 1, FLOAT32) + roundings(4 * self.terms + 32, FLOAT64)

    @cached_property
    def signs(self) -> tuple[Matrix, Matrix]:
        """A+ and A-."""
        return _signs(self.matrix)

    @cached_property
    def longest(self) -> float:
        """The largest sum of magnitudes in a row, with the bias."""
        return float(np.max(np.asarray(magnitudes(self.matrix).sum(axis=1)).reshape(-1) + np.abs(self.bias[:, 0])))

    def flushed(self, reach: Array) -> Array:
        """What numbers below the smallest normal one may err, for each column."""
        return np.asarray(2 * FLUSHED * ((self.terms + 1) * (1 + reach.max(axis=0)) + self.longest))

    def magnitude(self, reach: Array) -> Array:
        """M."""
        return np.asarray(magnitudes(self.matrix) @ reach + np.abs(self.bias))

    def ends(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Of the outputs of inputs between ``low`` and ``high`` (inputs, columns)."""
        reach = np.maximum(np.abs(low), np.abs(high))
        size = self.magnitude(reach)
        error = np.where(size < OVERFLOWS, size * self.share + self.flushed(reach), math.nan)
        positive, negative = self.signs
        return (
            np.asarray(positive @ low + negative @ high + self.bias - error),
            np.asarray(positive @ high + negative @ low + self.bias + error),
        )

    def margins(self, answer: int, low: Array, high: Array) -> Array:
        """(classes, columns): by how much the output ``answer`` is above each of the others at least."""
        reach = np.maximum(np.abs(low), np.abs(high))
        size = self.magnitude(reach)
        both = size + size[answer]
        error = np.where(both < OVERFLOWS, both * self.share + 2 * self.flushed(reach), math.nan)
        rows = np.asarray(self.matrix)
        positive, negative = _signs(rows[[answer]] - rows)
        found = np.asarray(positive @ low + negative @ high + (self.bias[answer] - self.bias) - error)
        return np.delete(found, answer, axis=0)


_WITHOUT_WEIGHTS = {RELU: relu, CONTRAST: contrast}


@dataclass(frozen=True, eq=False)
class Network:
    """Layers from the input on; those without weights by name, and ``last`` is the layer whose outputs are compared."""

    layers: tuple[Sums | str, ...]
    last: Sums
    levels: int

    @property
    def classes(self) -> int:
        """Outputs of the last layer."""
        return len(self.last.bias)

    @property
    def inputs(self) -> int:
        """Numbers of one input."""
        first = next((layer for layer in (*self.layers, self.last) if not isinstance(layer, str)), self.last)
        return int(first.matrix.shape[1])

    def before_last(self, stored: NDArray[Any], sizes: Array) -> tuple[Array, Array]:
        """Where the last layer's inputs lie for ``stored`` (columns, inputs) inputs, changed by up to ``sizes``."""
        centre = stored.T / self.levels
        low, high = np.maximum(centre - sizes - INPUT_SHARE, 0), np.minimum(centre + sizes + INPUT_SHARE, 1)
        for layer in self.layers:
            low, high = _WITHOUT_WEIGHTS[layer](low, high) if isinstance(layer, str) else layer.ends(low, high)
        return low, high

    def holds(self, stored: NDArray[Any], answers: NDArray[Any], radii: Array) -> Flags:
        """For each input whether ``answers`` is the only answer within its radius: proven, or not."""
        found = np.zeros(len(stored), dtype=np.bool_)
        for rows in _batches(len(stored)):
            with np.errstate(all="ignore"):  # what overflows is nan, and decides nothing
                low, high = self.before_last(stored[rows], radii[rows])
                for answer in np.unique(answers[rows]):
                    mine = answers[rows] == answer
                    found[rows][mine] = (self.last.margins(int(answer), low[:, mine], high[:, mine]) > 0).all(axis=0)
        return found

    def excludes(self, stored: NDArray[Any], answers: NDArray[Any]) -> Flags:
        """For each input whether ``answers`` is proven not to be what the network says of the input itself."""
        found = np.zeros(len(stored), dtype=np.bool_)
        for rows in _batches(len(stored)):
            with np.errstate(all="ignore"):
                low, high = self.last.ends(*self.before_last(stored[rows], np.zeros(len(stored[rows]))))
            found[rows] = np.take_along_axis(high, answers[rows][None], axis=0)[0] < low.max(axis=0)
        return found


def _batches(count: int) -> Iterator[slice]:
    return (slice(first, first + _TOGETHER) for first in range(0, count, _TOGETHER))


def network_of(parts: Sequence[First | str], tensors: Tensors, shape: tuple[int, ...], levels: int) -> Network:
    """The network with these ``parts`` and its weights, for inputs of ``shape``; ``LayerError`` where they do not fit."""
    layers: list[Sums | str] = []
    for part in parts:
        if isinstance(part, str):
            layers.append(part)
            continue
        layer = part.layer(tensors, shape, flattens=True)
        if not layer.weight.size:
            raise LayerError(f"no weights {part.name}.weight")
        bias = numbers(tensors, f"{part.name}.bias")
        if bias.shape != layer.weight.shape[:1]:
            raise LayerError(f"a bias of shape {bias.shape} for weights of shape {layer.weight.shape}")
        places = math.prod(layer.sizes)
        terms = math.prod(layer.weight.shape[1:])
        layers.append(Sums(layer.matrix(np.ones(layer.outputs)), np.repeat(bias, places)[:, None], terms))
        shape = (len(bias), *layer.sizes)
    last = layers.pop()
    if isinstance(last, str) or not isinstance(last.matrix, np.ndarray) or len(last.bias) < 2:
        raise LayerError("no linear layer of two or more classes at the end")
    return Network(tuple(layers), last, levels)
