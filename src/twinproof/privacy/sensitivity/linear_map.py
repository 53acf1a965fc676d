"""A linear or convolution layer as a matrix that is never written down.

An output is a product of weights with a patch of the input. So the matrix is a selection of patches followed by one small
dense product for all of them, and a linear layer is the case of a single patch. Rows and columns can be multiplied by
positive numbers, which is how noise of different deviations and the weights of ``relaxation`` enter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from twinproof.privacy.sensitivity.float_error import relative_error

Array = NDArray[np.float64]

# Numbers held at once while a block of vectors passes through the layer: 32 MiB.
_BLOCK_NUMBERS = 2**22


@dataclass(frozen=True)
class LinearMap:
    """The matrix diag(row_scale) (patchwise weights) diag(column_scale), times 2**exponent.

    ``patches`` (groups, taps, positions) holds the number of the input that a tap sees, or ``inputs`` where it sees padding;
    ``weights`` are (groups, channels, taps), ``row_scale`` (groups, channels, positions), or 1 position where it is the same
    for all. Outputs are numbered as in the layer: channel by channel, then position by position.

    Guarantees
        No tap pattern holds an input twice at one position, so every weight is one entry of the matrix, and ``absolute``
        and ``squared`` act on entries. ``exponent`` is left out by all methods; ``operator_norm`` puts it back.
    """

    patches: NDArray[np.int64]
    selection: csr_matrix
    weights: Array
    row_scale: Array
    column_scale: Array
    exponent: int

    @property
    def inputs(self) -> int:
        """Number of columns."""
        return int(self.column_scale.size)

    @property
    def outputs(self) -> int:
        """Number of rows."""
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
        """The matrix of the entries' magnitudes."""
        return replace(self, weights=np.abs(self.weights))

    def squared(self) -> LinearMap:
        """The matrix of the entries' squares."""
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
