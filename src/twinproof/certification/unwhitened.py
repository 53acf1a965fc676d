"""From the whitened layer with its noise back to the layer itself, which the rest of the network expects."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Unwhitened(nn.Module):
    """S v + b: rows v of the whitened layer times the scales S, plus the layer's bias b; numbers of ``dtype``.

    ``shape`` is the layer's, ``bias`` one number for each of its channels (or features), or None.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        scales: NDArray[np.float64],
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        uniform = bool((scales == 1).all())
        given = torch.ones(()) if uniform else torch.from_numpy(scales).view(shape)
        self.register_buffer("scales", given.to(device, dtype))
        channels = torch.zeros(1) if bias is None else bias.detach().clone()
        self.register_buffer("bias", channels.view(-1, *[1] * (len(shape) - 1)).to(device, dtype))
        self.scales: Tensor
        self.bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(rows, *shape)."""
        return torch.addcmul(self.bias, x.to(self.bias.dtype), self.scales)
