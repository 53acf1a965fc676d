"""Standard noise for training: float32 numbers from torch's global generator, the same for every layout and dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from twinproof.layers.noise.law import Law

# Half the step of a float32 uniform: it moves the uniform off 0 and 1, where the inverse of Laplace's law is infinite.
_HALF_STEP = 2.0**-25


def standard_noise(law: Law, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Fresh float32 draws of ``law``, independent of each other.

    The numbers depend on the generator and on how many are drawn, not on the memory layout or dtype of what they are added
    to. Drawn for all records at once, or for one record at a time under ``vmap``, they are therefore the same: that is what
    lets the trial of the per-example paths compare networks with noise.
    """
    if law is Law.GAUSSIAN:
        return torch.randn(shape, dtype=torch.float32, device=device)
    return laplace_from_uniform(torch.rand(shape, dtype=torch.float32, device=device))


def laplace_from_uniform(uniform: Tensor) -> Tensor:
    """Standard Laplace numbers from float32 numbers in [0, 1), by inversion.

    Guarantees
        Finite for every float32 in [0, 1). Proof: u - 1/2 lies in [-1/2, 1/2 - 2**-24] after rounding; adding 2**-25 is exact
        at both ends and monotone between, so the result v has |v| <= 1/2 - 2**-25, and 1 - 2|v| >= 2**-24 is exact there:
        the largest magnitude is 24 ln 2 = 16.6.
    """
    centred = (uniform - 0.5) + _HALF_STEP
    return -torch.sign(centred) * torch.log1p(-2 * centred.abs())
