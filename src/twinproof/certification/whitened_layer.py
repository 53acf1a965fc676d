"""The first layer of a network in the units of its noise, computed once for each input and rounded to the noise's grid.

Noise sigma * S * xi on h = W x + b is noise sigma * xi on u = S^-1 W x: the network goes on with S (u + noise) + b, which is
post-processing. u is a float64 product, rounded to the grid of the noise, so that u + noise is exact and what follows sees a
function of a continuous shift (docs/decisions/0011-noise-after-the-first-layer.md). The price is ``slack``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.grid_noise import GridNoise, layer_noise
from twinproof.certification.short_numbers import few_digits_above
from twinproof.errors import ModelError
from twinproof.layers.noise import Law
from twinproof.privacy.sensitivity.layer_map import layer_map

# Sums, roots and products that make up the slack are each right to 2^-53 of their value; far below this share.
_ROUNDED_UP = 1 + 2.0**-40


class WhitenedLayer:
    """u = S^-1 W x for inputs x in [0, 1] of ``levels`` stored levels, on the grid of the noise of deviation ``sigma``.

    ``shape`` is that of one input as ``layer`` gets it, ``scales`` the diagonal of S.

    Guarantees
        ``points`` is a fixed function of the stored input, whatever stands beside it. For two inputs x and x' its values are at
        most |A (x - x')| + ``slack`` apart, A = S^-1 W, in l2 (Gaussian) or l1 (Laplace). Proof: A is applied as the matrix
        whose norm is bounded, in float64; by the usual model of its arithmetic (``sensitivity.float_error``) a coordinate errs
        by at most a share ``error`` of sum_j |A_kj|, since 0 <= x <= 1. Rounding to the grid moves a coordinate by half a
        step. Twice the sum of both, for two inputs: sqrt(K) steps in l2 or K steps in l1, and 2 * error times that norm of the
        row sums.
    """

    def __init__(
        self, layer: nn.Module, shape: tuple[int, ...], scales: NDArray[np.float64], law: Law, sigma: float, levels: int
    ) -> None:
        self._matrix, self._levels = layer_map(layer, shape, scales), levels
        ones = np.ones((self._matrix.inputs, 1))
        rows = np.ldexp(self._matrix.absolute().apply(ones)[:, 0], self._matrix.exponent) * (1 + self._matrix.error)
        refuse_zeros(layer, rows)
        self.noise: GridNoise = layer_noise(sigma, law, self._matrix.outputs, float(rows.max()))
        whole, root = float(self._matrix.outputs), math.sqrt(self._matrix.outputs)
        steps, error = (root, np.linalg.norm(rows)) if law is Law.GAUSSIAN else (whole, rows.sum())
        self.slack = few_digits_above(_ROUNDED_UP * (steps * self.noise.grid + 2 * self._matrix.error * float(error)))

    @property
    def dimension(self) -> int:
        """Coordinates that get noise."""
        return self._matrix.outputs

    def points(self, stored: Tensor) -> Tensor:
        """(inputs, dimension) float32 multiples of the grid, on the device of ``stored``, which holds levels."""
        inputs = stored.reshape(len(stored), self._matrix.inputs).cpu().double().numpy() / self._levels
        made = np.empty((len(inputs), self.dimension), dtype=np.float32)
        # One by one: a product of matrices may sum in another order for another number of inputs.
        for place, one in enumerate(inputs):
            answers = np.ldexp(self._matrix.apply(one[:, None])[:, 0], self._matrix.exponent)
            made[place] = np.rint(answers / self.noise.grid) * self.noise.grid
        if made.size and not float(np.abs(made).max()) <= self.noise.largest:
            raise ModelError(
                "the layer before the noise is larger than its weights allow",
                where="certify",
                got=float(np.abs(made).max()),
                wanted=f"at most {self.noise.largest}, for inputs in [0, 1]",
            )
        return torch.from_numpy(made).to(stored.device)


def refuse_zeros(layer: nn.Module, sums: NDArray[np.float64]) -> None:
    """Refuses a layer whose weights, added up in ``sums`` of magnitudes, are all zero: no radius can be read off it."""
    if not sums.any():
        raise ModelError(
            "the layer before the noise ignores its input",
            where=type(layer).__name__,
            got="weights that are all zero",
            wanted="a layer that depends on its input",
            fix="train the network first",
        )
