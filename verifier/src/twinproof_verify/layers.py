"""The layer before the noise: which one it is, how the noise is spread, and the layer as a matrix, from settings and weights.

``Layer.matrix`` holds each weight at each place where the layer's definition puts it (a cross-correlation with zero padding, or
a plain product), divided by the scale of its output: one rounding an entry. Sizes that do not fit each other, or that would
take more than a few hundred megabytes, raise ``LayerError`` before anything is built. No network is run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from twinproof_verify.certificates import BOTH, INPUT
from twinproof_verify.evidence import Tensors
from twinproof_verify.run_json import NoiseLayer

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
        return math.prod(self.shape)

    @property
    def outputs(self) -> int:
        return len(self.weight) * math.prod(self.sizes)

    @property
    def is_convolution(self) -> bool:
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
    return np.abs(matrix) if isinstance(matrix, np.ndarray) else sparse.csr_array(abs(matrix))


def transposed(matrix: Matrix) -> Matrix:
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


# Rows of a matrix whose eigenvectors are found.
_LARGEST_GRAM = 4096


def joint_matrix(matrix: Matrix, input_scale: float, hidden_scale: float) -> Array:
    """R, where a change a costs |R a| deviations in l2 of noise on the input and behind the layer: the best split of it.

    R'R is the parallel sum (input_scale^2 I + hidden_scale^2 (A'A)^-1)^-1, by the eigenvectors of A'A. Its eigenvalues are
    raised by more than float64 errs in them.
    """
    inputs = int(matrix.shape[1])
    if inputs > _LARGEST_GRAM:
        raise LayerTooLargeError(f"{inputs} inputs")
    gram = matrix.T @ matrix
    dense = np.asarray(gram if isinstance(gram, np.ndarray) else gram.toarray(), dtype=np.float64)
    values, vectors = np.linalg.eigh(dense)
    values = np.maximum(values, 0.0) + float(values.max()) * inputs * 2.0**-50
    return np.asarray(np.sqrt(values / (hidden_scale**2 + input_scale**2 * values))[:, None] * vectors.T)


_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class First:
    """The first layer: its name among the weights, and what they do not tell; ``stride`` is None for a linear layer."""

    name: str
    stride: tuple[int, ...] | None = None
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] | None = None
    groups: int = 1

    def layer(self, tensors: Tensors, shape: tuple[int, ...], *, flattens: bool) -> Layer:
        weight = numbers(tensors, f"{self.name}.weight")
        if self.stride is None:
            if not flattens and len(shape) != 1:
                raise LayerError(f"a linear layer for inputs of shape {shape}")
            return linear(weight, math.prod(shape))
        return convolution(weight, shape, self.stride, self.padding, self.dilation, self.groups)


def _convolution(stride: int, padding: int) -> First:
    return First("0", (stride, stride), (padding, padding))


FIRST_LAYERS = {
    "mlp": First("1"),
    "relu-mlp": First("1"),
    "interval-cnn": _convolution(2, 2),
    "small-cnn": _convolution(1, 1),
    "tramer-boneh-cnn": _convolution(2, 2),
    "gelu-cnn": _convolution(2, 3),
    "stobatch-cnn": _convolution(2, 2),
    "wrn-16-4": _convolution(1, 1),
    "resnet-18": _convolution(1, 1),
}
"""Networks of this package that begin with a linear or convolution layer; the side of a kernel is that of its weights."""


@dataclass(frozen=True)
class Spread:
    """How the noise of the module ``name`` is shared out; ``floor`` and ``width`` are those of learned and random shares."""

    name: str
    kind: str
    floor: float = 0.0
    width: float = 0.0

    def scales(self, tensors: Tensors, coordinates: int) -> Array:
        """The smallest scale that each coordinate's noise can have: sqrt(K r)."""
        if self.kind == "uniform":
            return np.ones(coordinates)
        if self.kind == "random":
            mean = ((1 - self.width) + (coordinates - 1) * (1 + self.width)) / coordinates
            return np.full(coordinates, float(np.float32(((1 - self.width) / mean) ** 0.5)))
        if self.kind == "learned":
            shares = numbers(tensors, f"{self.name}.spread.log_shares").reshape(-1)
            raised = np.exp(shares - shares.max())
            mixed = raised / raised.sum() * ((1 - self.floor) * len(shares)) + self.floor
            found = np.asarray(np.sqrt(mixed).astype(np.float32), dtype=np.float64)
        else:
            found = numbers(tensors, f"{self.name}.spread.scales").reshape(-1)
        if len(found) != coordinates or not (np.isfinite(found).all() and found.min() > 0):
            raise LayerError(f"{len(found)} scales of noise, not all of them positive, for {coordinates} coordinates")
        return found


@dataclass(frozen=True)
class Placement:
    """Where the noise is: ``first`` is the layer before it (None: at the input), which sees a flat input if it ``flattens``."""

    law: str
    first: First | None
    flattens: bool
    spread: Spread
    # Of a second noise, on the input, where there is noise behind the layer too.
    input_spread: Spread | None = None
    # Whether draws that are kept follow, as one paper has it.
    kept: bool = False


def numbers(tensors: Tensors, name: str) -> Array:
    """A stored tensor in float64, which holds the smaller types exactly."""
    tensor = tensors.get(name)
    kind = None if tensor is None else str(tensor["dtype"])
    if tensor is None or kind not in _FLOATS:
        raise LayerError(f"there are no weights {name} of a known type")
    values = np.frombuffer(tensor["data"], dtype=_FLOATS[kind]).astype(np.float64)
    if not np.isfinite(values).all():
        raise LayerError(f"the weights {name} are not finite")
    return values.reshape([int(size) for size in tensor["shape"]])


@dataclass(frozen=True)
class OwnersNetwork:
    """What an owner's module says of its beginning: its first layer, whether that sees a flat input, and its own noise."""

    first: First | None
    flattens: bool
    noise: Placement | None


def placement_of(config: dict[str, Any], owners: OwnersNetwork | None) -> Placement | None:
    """Where the settings put the noise, or where the owner's network has it; None if there is none."""
    known = OwnersNetwork(FIRST_LAYERS.get(str(config.get("model"))), config.get("model") in ("mlp", "relu-mlp"), None)
    network = known if owners is None else owners
    if config.get("noise_layer") is None:
        return network.noise
    if network.noise is not None:
        raise LayerError("noise in the settings and in the network itself")
    noise = NoiseLayer.model_validate(config["noise_layer"])
    spread = Spread("noise", noise.redistribution, noise.floor, noise.width)
    if noise.place == INPUT:
        return Placement(noise.law, None, False, spread)
    if network.first is None:
        raise LayerError("the network does not begin with a linear or convolution layer")
    if noise.place == BOTH:
        spreads = (Spread("noise", "uniform"), Spread("input_noise", "uniform"))
        return Placement(noise.law, network.first, network.flattens, *spreads, kept=config.get("variant") == "published")
    return Placement(noise.law, network.first, network.flattens, spread)
