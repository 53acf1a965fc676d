"""The transposed linear part of a layer, with that layer's own weights: the decoder of an auto-encoder with tied weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.noise.norm_estimate import linear_part
from twinproof.layers.noise.placement import FirstLayer


class Adjoint(nn.Module):
    """Rows shaped like the outputs of ``layer``, to rows shaped like its inputs; it has no parameter of its own.

    Guarantees
        Its bias left out, <layer(x), c> = <x, adjoint(c)> for all x and c. Nothing of ``layer`` is registered here, so that
        its parameters belong to it alone.
    """

    def __init__(self, layer: FirstLayer) -> None:
        super().__init__()
        if not isinstance(layer, nn.Linear) and layer.padding_mode != "zeros":
            raise ModelError(
                "the layer cannot be transposed",
                where="padding_mode",
                got=layer.padding_mode,
                wanted="zeros around the input",
                fix="use padding_mode='zeros'",
            )
        self._layer = (layer,)  # in a tuple: a module as an attribute would be registered

    @property
    def layer(self) -> FirstLayer:
        """The layer whose weights these are."""
        return self._layer[0]

    def forward(self, outputs: Tensor, like: Tensor) -> Tensor:
        """(rows, *outputs of the layer) -> what has the shape of its inputs ``like``."""
        layer = self.layer
        # Not a transposed convolution by hand: strides that do not divide the input, and padding by name, come out right.
        pull = torch.func.vjp(lambda inputs: linear_part(layer, layer.weight, inputs), torch.zeros_like(like))[1]
        found: Tensor = pull(outputs)[0]
        return found
