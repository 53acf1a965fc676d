"""Scales that are trained: the logarithms of the shares are ordinary parameters, so DP-SGD pays for them with the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.layers.noise.spread import Spread


class LearnedSpread(Spread):
    """K r = (1 - floor) K softmax(log_shares) + floor: a distribution r in which no coordinate falls below floor / K.

    ``log_shares`` (K,) starts at zero, where all scales are 1.

    Guarantees
        ``forward`` and ``least`` both call ``scales``, a function of ``log_shares`` alone without any choice that depends on
        the batch: on one device they are the same numbers to the bit. The scales are computed in float64 and rounded once to
        the parameter's dtype, so two devices, whose float64 functions differ in the last bits, agree on the float32
        numbers except where one falls within those bits of the middle between two of them.
    """

    def __init__(self, shape: tuple[int, ...], floor: float = 0.1) -> None:
        super().__init__(shape)
        if not 0 < floor < 1:
            raise ConfigError("the floor of the shares is not usable", where="floor", got=floor, wanted="above 0 and below 1")
        self.floor = float(floor)
        self.log_shares = nn.Parameter(torch.zeros(self.coordinates))

    def forward(self, noise: Tensor) -> Tensor:
        """Each coordinate times its scale."""
        return noise * self.scales().view(self.shape)

    def scales(self) -> Tensor:
        """sqrt(K r): (K,) in the dtype of the parameter, with its gradient."""
        shares = torch.softmax(self.log_shares.double(), dim=0)
        return (shares * ((1 - self.floor) * self.coordinates) + self.floor).sqrt().to(self.log_shares.dtype)

    def least(self) -> Tensor:
        """The scales; nothing about them is drawn."""
        return self.scales().detach()

    def extra_repr(self) -> str:
        """For ``print(network)``."""
        return f"coordinates={self.coordinates}, floor={self.floor}"
