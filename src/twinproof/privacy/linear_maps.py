"""Layers as linear maps: matrices and convolutions with their transposes and float errors.

The model is the usual one (Higham, Accuracy and Stability of Numerical Algorithms, chapters 2 and 3): each operation is right
to a relative error of 2^-53, sums may be taken in any order and with fused operations. Numbers are scaled beforehand so that
the largest entry of a matrix is near 1: what underflows is far below all other errors.

An output is a product of weights with a patch of the input. So the matrix is a selection of patches followed by one small
dense product for all of them, and a linear layer is the case of a single patch. Rows and columns can be multiplied by
positive numbers, which is how noise of different deviations and the weights of ``relaxation`` enter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from torch import nn

from twinproof import checks
from twinproof.errors import ConfigError, ModelError


class Norm(StrEnum):
    """The norms in which inputs and outputs are measured."""

    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


@dataclass(frozen=True)
class Bound:
    """An operator norm between ``lower`` and ``value``, rounding included.

    Noise and radii may rest on ``value``; ``lower`` is reached by an input that was tried, and only shows how tight ``value``
    is. ``method`` says in words where ``value`` comes from.
    """

    value: float
    lower: float
    method: str


UNIT = 2.0**-53
# Operations besides the sum itself: scalings, square roots, products, the rounding of the bound that is being computed.
_AROUND_A_SUM = 64


def relative_error(terms: int) -> float:
    """Bound on the relative error of a sum of ``terms`` numbers of one sign, each with a few roundings of its own.

    For numbers of both signs it is the error relative to the sum of magnitudes. Twice the classical constant, so that
    factors such as (1 + error) may be multiplied and divided without counting their own roundings.
    """
    return 2 * (terms + _AROUND_A_SUM) * UNIT


Array = NDArray[np.float64]

# Numbers held at once while a block of vectors passes through the layer: 32 MiB.
_BLOCK_NUMBERS = 2**22


@dataclass(frozen=True)
class LinearMap:
    """The matrix diag(row_scale) (patchwise weights) diag(column_scale), times 2**exponent.

    ``patches`` (groups, taps, positions) holds the number of the input that a tap sees, or ``inputs`` where it sees padding;
    ``weights`` are (groups, channels, taps), ``row_scale`` (groups, channels, positions), or 1 position where it is the same
    for all. Outputs are numbered as in the layer: channel by channel, then position by position.

    No tap pattern holds an input twice at one position, so every weight is one entry of the matrix, and ``absolute`` and
    ``squared`` act on entries. All methods leave ``exponent`` out; ``operator_norm`` puts it back.
    """

    patches: NDArray[np.int64]
    selection: csr_matrix
    weights: Array
    row_scale: Array
    column_scale: Array
    exponent: int

    @property
    def inputs(self) -> int:
        return int(self.column_scale.size)

    @property
    def outputs(self) -> int:
        return int(self.weights.shape[0] * self.weights.shape[1] * self.patches.shape[2])

    @property
    def error(self) -> float:
        """Relative error of any product with the matrix or of its Gram matrices, against the same product of magnitudes."""
        return relative_error(self.inputs + self.outputs)

    @property
    def block(self) -> int:
        """How many vectors may pass through at once without taking more than a fixed amount of memory."""
        return max(1, _BLOCK_NUMBERS // max(self.patches.size, self.outputs, self.inputs))

    def apply(self, vectors: Array) -> Array:
        """The matrix times (inputs, count) vectors."""
        count = vectors.shape[1]
        groups, taps, positions = self.patches.shape
        seen = (self.selection @ (vectors * self.column_scale[:, None])).reshape(groups, taps, positions * count)
        answers = (self.weights @ seen).reshape(groups, -1, positions, count)
        return np.asarray((answers * self.row_scale[..., None]).reshape(self.outputs, count))

    def adjoint(self, vectors: Array) -> Array:
        """The transposed matrix times (outputs, count) vectors."""
        count = vectors.shape[1]
        groups, _, positions = self.patches.shape
        scaled = vectors.reshape(groups, -1, positions, count) * self.row_scale[..., None]
        spread = self.weights.transpose(0, 2, 1) @ scaled.reshape(groups, -1, positions * count)
        return np.asarray((self.selection.T @ spread.reshape(-1, count)) * self.column_scale[:, None])

    def absolute(self) -> LinearMap:
        return replace(self, weights=np.abs(self.weights))

    def squared(self) -> LinearMap:
        return replace(
            self,
            weights=self.weights**2,
            row_scale=self.row_scale**2,
            column_scale=self.column_scale**2,
            exponent=2 * self.exponent,
        )

    def rescaled(self, rows: Array | None, columns: Array | None) -> LinearMap:
        """The matrix with its rows and columns multiplied by (outputs,) and (inputs,) numbers."""
        row_scale, column_scale = self.row_scale, self.column_scale
        if rows is not None:
            row_scale = row_scale * rows.reshape(self.weights.shape[0], self.weights.shape[1], -1)
        if columns is not None:
            column_scale = column_scale * columns
        return replace(self, row_scale=row_scale, column_scale=column_scale)

    def column_gram(self) -> Array:
        """The dense (inputs, inputs) matrix of products of columns."""
        gram = np.zeros((self.inputs + 1, self.inputs + 1))  # the last row and column collect what the padding sees
        for weights, patches, scale in zip(self.weights, self.patches, self.row_scale, strict=True):
            product = np.empty(0)
            for position in range(patches.shape[1]):
                if position < scale.shape[1]:  # otherwise the scale, and so the product, is that of the position before
                    scaled = weights * scale[:, position, None]
                    product = scaled.T @ scaled
                seen = patches[:, position]
                gram[np.ix_(seen, seen)] += product
        return np.asarray(gram[:-1, :-1] * self.column_scale[:, None] * self.column_scale)

    def row_gram(self) -> Array:
        """The dense (outputs, outputs) matrix of products of rows."""
        blocks = []
        for start in range(0, self.outputs, self.block):
            units = np.eye(self.outputs, min(self.block, self.outputs - start), -start)
            blocks.append(self.apply(self.adjoint(units)))
        gram = np.concatenate(blocks, axis=1)
        return (gram + gram.T) / 2


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS)
_LAYER_NAMES = ", ".join(kind.__name__ for kind in _LAYERS)
# Squares of quotients of two scales must not underflow next to each other, wherever the padding hides a weight.
_SMALLEST_SCALE = 1e-60


def layer_map(layer: nn.Module, input_shape: tuple[int, ...], scale: ArrayLike | None = None) -> LinearMap:
    """The linear part of ``layer`` on one input of ``input_shape``, each output divided by its entry of ``scale``.

    The weights are the layer's own, exactly (float64 holds every number of the smaller types). A bias moves all outputs alike
    and is left out. What is not known to be such a layer (a subclass, hooks, another padding mode) is refused.
    """
    known = checked_layer(layer)
    weights = _weights(known)
    if isinstance(known, nn.Linear):
        _check_shape(input_shape, (known.in_features,))
        patches = np.arange(known.in_features).reshape(1, -1, 1)
    else:
        _check_shape(input_shape, (known.in_channels, *[None] * len(known.kernel_size)))
        patches = _convolution_patches(known, input_shape)
    rows = (weights.shape[0], weights.shape[1], patches.shape[2])
    return _normalised(patches, math.prod(input_shape), weights, _row_scale(scale, rows))


def checked_layer(layer: nn.Module) -> Layer:
    """``layer`` itself, if it is a plain linear or convolution layer; a subclass or a hook could compute anything else."""
    kind = type(layer).__name__
    if type(layer) not in _LAYERS or not isinstance(layer, _LAYERS):
        what, got, wanted = "the operator norm of this layer is not known", f"a layer of type {kind}", _LAYER_NAMES
        fix = "put the noise behind a layer of these types, or at the input"
    elif layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
        what, got = "the layer does more than its type says", "a hook or a replaced forward function"
        wanted, fix = "the layer as its class defines it", "remove the hooks, or make them layers of their own"
    elif isinstance(layer, _CONVOLUTIONS) and layer.padding_mode != "zeros":
        what, got, wanted = "the operator norm for this padding is not known", layer.padding_mode, "zeros"
        fix = "use padding_mode='zeros'"
    else:
        return layer
    raise ModelError(what, where=kind, got=got, wanted=wanted, fix=fix)


def _weights(layer: Layer) -> Array:
    """(groups, channels, taps) in float64."""
    weight = layer.weight.detach()
    if not weight.is_floating_point() or not bool(torch.isfinite(weight).all()):
        raise ModelError(
            "the layer has weights without a usable value",
            where=f"{type(layer).__name__}.weight",
            got="NaN or infinity" if weight.is_floating_point() else str(weight.dtype),
            wanted="finite real numbers",
            fix="train again with a smaller step, or load intact weights",
        )
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    values: Array = weight.to(device="cpu", dtype=torch.float64).numpy()
    return values.reshape(groups, weight.shape[0] // groups, -1)


def _check_shape(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
    fits = len(shape) == len(wanted) and all(
        size >= 1 and size == (want or size) for size, want in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise ModelError(
            "the input shape does not fit the layer",
            where="input_shape",
            got=tuple(shape),
            wanted="(" + ", ".join("any" if want is None else str(want) for want in wanted) + ")",
            fix="give the shape of one input, without the batch",
        )


def _convolution_patches(layer: Convolution, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """(groups, taps, positions): which input a tap sees; one past the last where it sees padding."""
    sizes = shape[1:]
    place = np.zeros([1] * (2 * len(sizes)), dtype=np.int64)
    inside = np.ones_like(place, dtype=bool)
    for axis, size in enumerate(sizes):
        line = _seen_lines(layer, axis, size)
        spread = [1] * (2 * len(sizes))
        spread[axis], spread[len(sizes) + axis] = line.shape
        line = line.reshape(spread)
        place = place * size + line
        inside = inside & (line >= 0) & (line < size)
    taps = math.prod(layer.kernel_size)
    place, inside = place.reshape(taps, -1), inside.reshape(taps, -1)
    channels = np.arange(shape[0]).reshape(layer.groups, -1, 1, 1)
    seen = np.where(inside, channels * math.prod(sizes) + place, math.prod(shape))
    return seen.reshape(layer.groups, -1, place.shape[1])


def _seen_lines(layer: Convolution, axis: int, size: int) -> NDArray[np.int64]:
    """(taps, positions) along one axis: the line of the input a tap sees, negative or beyond ``size`` in the padding."""
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    reach = dilation * (kernel - 1)
    if layer.padding == "same":
        before, both = reach // 2, reach
    else:
        before = 0 if isinstance(layer.padding, str) else layer.padding[axis]
        both = 2 * before
    count = (size + both - reach - 1) // stride + 1
    if count < 1:
        raise ModelError(
            "the kernel is larger than the input",
            where="input_shape",
            got=f"{size} lines along axis {axis}",
            wanted=f"at least {reach + 1 - both}",
            fix="give the shape of one input, without the batch",
        )
    return dilation * np.arange(kernel)[:, None] + stride * np.arange(count) - before


def _row_scale(scale: ArrayLike | None, rows: tuple[int, int, int]) -> Array:
    """What each output is multiplied by: one over ``scale``."""
    if scale is None:
        return np.ones((rows[0], rows[1], 1))
    values = np.asarray(scale, dtype=np.float64)
    if values.size != math.prod(rows):
        raise ConfigError(
            "the scale does not fit the layer's outputs",
            where="scale",
            got=f"{values.size} numbers",
            wanted=f"{math.prod(rows)}, one for each output",
            fix="give sqrt(K r) of a redistribution r with one share for each output of this layer",
        )
    checks.between(
        _SMALLEST_SCALE,
        1 / _SMALLEST_SCALE,
        smallest_scale=float(values.min()),
        largest_scale=float(values.max()),
        fix="an output without noise has no bounded sensitivity: give each a share above 0",
    )
    return 1 / values.reshape(rows)


def _normalised(patches: NDArray[np.int64], inputs: int, weights: Array, row_scale: Array) -> LinearMap:
    """The map with entries near 1, by powers of two: exact, and no square or product over- or underflows on the way.

    Taps that see nothing but padding are no entries: they are taken for zero.
    """
    weights = weights * (patches.min(axis=2) < inputs)[:, None, :]
    _, channel_exponent = np.frexp(np.abs(weights).max(axis=2, keepdims=True))
    zero = ~weights.any(axis=2, keepdims=True)
    _, scale_exponent = np.frexp(row_scale)
    total = np.where(zero, np.iinfo(np.int32).min // 2, channel_exponent + scale_exponent)
    exponent = 0 if zero.all() else int(total.max())
    shift = np.where(zero, 0, channel_exponent - exponent)
    return LinearMap(
        patches=patches,
        selection=_selection(patches, inputs),
        weights=np.ldexp(weights, -channel_exponent),
        row_scale=np.where(zero, 0.0, np.ldexp(row_scale, shift)),
        column_scale=np.ones(inputs),
        exponent=exponent,
    )


def _selection(patches: NDArray[np.int64], inputs: int) -> csr_matrix:
    """(groups * taps * positions, inputs): 1 where a tap sees an input."""
    flat = patches.reshape(-1)
    rows = np.flatnonzero(flat < inputs)
    return csr_matrix((np.ones(rows.size), (rows, flat[rows])), shape=(flat.size, inputs))
