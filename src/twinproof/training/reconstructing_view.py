"""A network with two noises as StoBatch trains it: its first layer is also an auto-encoder with tied weights.

The released network answers with logits and nothing else. In training it is looked at through a view of the same modules that
hands out one more column, what its reconstruction of the input costs, so that a loss of one record can count it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.adjoint import Adjoint
from twinproof.layers.noise import split_at_two_noises
from twinproof.layers.noise.placement import FirstLayer
from twinproof.training.taylor_loss import taylor_reconstruction_rows


@dataclass(frozen=True, eq=False)
class _Parts:
    """Modules of the network; no module itself, so that nothing is registered twice."""

    input_noise: nn.Module
    layer: FirstLayer
    flattens: bool
    noise: nn.Module
    after: nn.Module


class ReconstructingView(nn.Module):
    """Rows of inputs -> their logits and, in the last column, the cost of their reconstruction.

    The input x gets its noise, the first layer theta gives h = theta' (x + e1) + b, which gets its own: the decoder is the
    transposed layer, theta (h + e2), and is compared with x (Eq. 5 of Phan et al. 2020). One draw of both noises serves the
    logits and the reconstruction.

    Guarantees
        The modules are those of ``network`` under the same names, so that gradients belong to its parameters; it is not
        changed, and nothing is added to it. Rows do not meet.
    """

    columns = 1
    """Columns beside the logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        two = split_at_two_noises(network)
        if two is None or two.hidden.before is None:
            raise ModelError(
                "only a network with two noises is trained as an auto-encoder",
                where="network",
                got="fewer than two noise layers",
                wanted="noise on the input and behind the first layer (add_two_noises)",
            )
        for name, module in network.named_children():
            self.add_module(name, module)
        # Registered, so that whoever looks for uses of weights finds this one; it has no parameter of its own.
        self.tied_decoder = Adjoint(two.hidden.before)
        hidden = two.hidden
        self._parts = _Parts(two.input_noise, two.hidden.before, hidden.flattens, hidden.noise, hidden.after)
        self.training = network.training

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, *shape) -> (rows, classes + 1)."""
        parts = self._parts
        inputs, noisy = rows, parts.input_noise(rows)
        if parts.flattens:
            inputs, noisy = inputs.flatten(1), noisy.flatten(1)
        code = parts.noise(parts.layer(noisy))
        logits: Tensor = parts.after(code)
        cost = taylor_reconstruction_rows(self.tied_decoder(code, inputs), inputs)
        return torch.cat([logits, cost.unsqueeze(1)], dim=1)
