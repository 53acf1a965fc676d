"""The first layer of a network that has noise on its input: computed for every noisy row, with the layer's own noise added."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.certification.grid_noise import GridNoise
from twinproof.privacy.sensitivity.linear_map import LinearMap

# Numbers of patches cut out at a time.
_MOST_NUMBERS = {"cpu": 2**19, "cuda": 2**26}


class NoisyLayer(nn.Module):
    """Rows (w, n) of noisy inputs w and the layer's noise n, to the whitened layer with its noise.

    ``matrix`` is S^-1 W on inputs in [0, 1]; n has the scale ``noise.sigma`` and stands for noise of ``hidden_scale``. Rows
    were divided by the number of levels in float32: which whole number of steps they were is read back (``joint_noise``).

    Guarantees
        The answer is ``step`` times a sum of whole numbers that float64 holds exactly: those of n, and v(w), the whole numbers
        nearest to what float64 finds for A w / step, A = S^-1 W. What it finds errs, in whatever order it adds, by at most a
        share ``matrix.error`` of sum_j |A_kj| |w_j| / step in output k. So two noisy inputs w and w + a have v at most
        |A a|_1 / step apart in l1, plus one for each output, plus the sum over all outputs of both errors. Only sums of
        products are computed: a routine for convolutions may use transforms, for which that share would not do.
    """

    def __init__(
        self,
        matrix: LinearMap,
        noise: GridNoise,
        hidden_scale: float,
        shape: tuple[int, ...],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.inputs, self.levels, self.grid, self.shape = matrix.inputs, noise.levels, noise.grid, shape
        # One step of the grid, in units of the whitened layer.
        self.step = hidden_scale / noise.steps
        self._scale = 2.0**matrix.exponent / self.step
        self.register_buffer("patches", torch.from_numpy(matrix.patches).to(device))
        self.register_buffer("weights", torch.from_numpy(matrix.weights).to(device))
        self.register_buffer("row_scale", torch.from_numpy(matrix.row_scale).to(device))
        self.patches: Tensor
        self.weights: Tensor
        self.row_scale: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs + outputs) in input units to (rows, *shape) in units of the whitened layer, float64."""
        whole = rows.to(torch.float64, copy=True).mul_(self.levels / self.grid).round_()
        inputs, noise = whole[:, : self.inputs] * (self.grid / self.levels), whole[:, self.inputs :]
        piece = max(1, _MOST_NUMBERS["cuda" if rows.is_cuda else "cpu"] // self.patches.numel())
        layer = torch.cat([self._applied(inputs[first : first + piece]) for first in range(0, len(rows), piece)])
        # In place: this is most of what passes through memory for a row, and each pass counts.
        return layer.mul_(self._scale).round_().add_(noise).mul_(self.step).view(len(rows), *self.shape)

    def _applied(self, inputs: Tensor) -> Tensor:
        """(rows, outputs): the matrix without its power of two; padding sees a zero behind the last input."""
        seen = nn.functional.pad(inputs, (0, 1))[:, self.patches]
        return (self.weights @ seen).mul_(self.row_scale).flatten(1)
