"""The first layer of a network as a matrix, written down from its weights: numpy and scipy alone, no network is run.

Guarantees
    ``matrix`` holds each weight at each place where the layer's own definition puts it (a cross-correlation with zero padding,
    or a plain product), divided by the scale of its output: one rounding an entry. Sizes that do not fit each other, or that
    would take more than a few hundred megabytes, raise ``LayerError`` before anything is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]
Matrix = Array | sparse.csr_array

MOST_ENTRIES = 2**24


class LayerError(ValueError):
    """The layer does not fit its input, in words."""


class LayerTooLargeError(LayerError):
    """The layer fits, but its matrix is larger than the verifier writes down."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer (``weight`` has two axes) or a convolution over as many axes as ``stride`` has.

    ``shape`` is that of one input. ``before`` is the padding before each axis, ``sizes`` the length of each axis of the output;
    both are empty for a linear layer.
    """

    weight: Array
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    groups: int = 1

    @property
    def inputs(self) -> int:
        """Coordinates of one input."""
        return math.prod(self.shape)

    @property
    def outputs(self) -> int:
        """Coordinates of one output."""
        return len(self.weight) * math.prod(self.sizes)

    @property
    def is_convolution(self) -> bool:
        """Whether it is no plain product."""
        return self.weight.ndim > 2

    def matrix(self, scales: Array) -> Matrix:
        """(outputs, inputs), row by row divided by ``scales``; outputs are numbered channel by channel."""
        if len(scales) != self.outputs:
            raise LayerError(f"{len(scales)} scales for {self.outputs} outputs")
        if not self.is_convolution:
            if self.weight.size > MOST_ENTRIES:
                raise LayerTooLargeError(f"{self.weight.size} weights")
            return np.asarray(self.weight / scales[:, None], dtype=np.float64)
        return self._convolution(scales)

    def _convolution(self, scales: Array) -> sparse.csr_array:
        channels, seen = self.weight.shape[:2]
        axes = [self._axis(axis) for axis in range(len(self.sizes))]
        entries = channels * seen * math.prod(len(places) for places, _, _ in axes)
        if entries > MOST_ENTRIES:
            raise LayerTooLargeError(f"{entries} entries that are not zero")
        channel, tap = np.ogrid[:channels, :seen]
        rows = channel
        columns = tap + channel // (channels // self.groups) * seen
        index: list[NDArray[np.int64]] = [np.broadcast_to(channel, (channels, seen)), np.broadcast_to(tap, (channels, seen))]
        for axis, (places, taps, inputs) in enumerate(axes):
            rows = rows[..., None] * self.sizes[axis] + places
            columns = columns[..., None] * self.shape[axis + 1] + inputs
            index = [*(one[..., None] for one in index), taps]
        values = self.weight[tuple(np.broadcast_arrays(*index))].ravel()
        rows, columns = (
            np.broadcast_to(one, np.broadcast_shapes(rows.shape, columns.shape)).ravel() for one in (rows, columns)
        )
        return sparse.csr_array((values / scales[rows], (rows, columns)), shape=(self.outputs, self.inputs))

    def _axis(self, axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Every pair of an output's place and a tap that sees an input and not the padding, and the input's place."""
        places, taps = np.meshgrid(np.arange(self.sizes[axis]), np.arange(self.weight.shape[axis + 2]), indexing="ij")
        inputs = places * self.stride[axis] + taps * self.dilation[axis] - self.before[axis]
        inside = (inputs >= 0) & (inputs < self.shape[axis + 1])
        return places[inside], taps[inside], inputs[inside]


def linear(weight: Array, inputs: int) -> Layer:
    """A product with ``weight`` (outputs, inputs)."""
    if weight.ndim != 2 or weight.shape[1] != inputs:
        raise LayerError(f"weights of shape {weight.shape} for {inputs} inputs")
    return Layer(weight, (inputs,))


def convolution(
    weight: Array,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
) -> Layer:
    """A convolution with ``weight`` (maps, channels / groups, taps ...) of inputs (channels, ...), padded with zeros."""
    axes = len(shape) - 1
    dilation = (1,) * axes if dilation is None else dilation
    fits = weight.ndim == axes + 2 and min(weight.shape) > 0 and len(stride) == len(dilation) == axes
    if not fits or groups < 1 or weight.shape[0] % groups or weight.shape[1] * groups != shape[0]:
        raise LayerError(f"weights of shape {weight.shape} in {groups} groups for inputs of shape {shape}")
    spans = [step * (taps - 1) for step, taps in zip(dilation, weight.shape[2:], strict=True)]
    before = tuple(span // 2 for span in spans) if padding == "same" else padding
    if isinstance(before, str):
        before = (0,) * axes
    around = spans if padding == "same" else [2 * pad for pad in before]
    sizes = tuple(
        (size + pad - span - 1) // step + 1 for size, pad, span, step in zip(shape[1:], around, spans, stride, strict=True)
    )
    if min(sizes) < 1:
        raise LayerError(f"a kernel of {weight.shape[2:]} is larger than inputs of shape {shape}")
    return Layer(weight, shape, stride, dilation, before, sizes, groups)


def magnitudes(matrix: Matrix) -> Matrix:
    """Each entry without its sign."""
    return np.abs(matrix) if isinstance(matrix, np.ndarray) else sparse.csr_array(abs(matrix))


def transposed(matrix: Matrix) -> Matrix:
    """Columns for rows."""
    return matrix.T if isinstance(matrix, np.ndarray) else sparse.csr_array(matrix.T)


def row_sums(matrix: Matrix) -> Array:
    """The sum of the magnitudes that make up each output, at the furthest input in [0, 1]."""
    return np.asarray(magnitudes(matrix).sum(axis=1), dtype=np.float64)


def column_sums(matrix: Matrix) -> Array:
    """How far the output moves in l1 for each coordinate of the input alone."""
    return np.asarray(magnitudes(matrix).sum(axis=0), dtype=np.float64)


def largest_output(matrix: Matrix) -> float:
    """The largest magnitude that an output can have for inputs in [0, 1]: all positive entries, or all negative ones."""
    return float(((row_sums(matrix) + np.abs(np.asarray(matrix.sum(axis=1)))) / 2).max())
