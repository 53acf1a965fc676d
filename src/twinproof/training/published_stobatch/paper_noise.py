"""How much noise Algorithm 1 draws for a claimed epsilon, by the paper's own sensitivities. Status of the claim: refuted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from twinproof.errors import ConfigError
from twinproof.layers.noise_placement import FirstLayer
from twinproof.privacy.paper_formulas import paper_delta_l2, paper_delta_r

OUTPUT_EPSILON = 0.1
"""epsilon_2, the output layer's part of the claim, on MNIST."""

# The paper's inputs lie in [-1, 1]: twice as wide as ours, and so are the first layer's outputs at the same weights.
_WIDTH = 2.0


@dataclass(frozen=True)
class PaperNoise:
    """Scales of Laplace noise in the units of the house (inputs in [0, 1]), for one training with batches of m records.

    ``on_input`` is Delta_R / (m epsilon_1) over 2, ``on_layer`` twice that.
    """

    on_input: float
    on_layer: float


def paper_noise(epsilon: float | None, batch: int, layer: FirstLayer, outputs: tuple[int, ...]) -> PaperNoise:
    """Noise for the claim ``epsilon``; ``outputs`` is the shape behind ``layer``, which has its initial weights.

    epsilon_1 = (epsilon - epsilon_2) / (1 + 1/gamma + 1/gamma_x), with gamma_x = Delta_R / m and gamma = 2 Delta_R / (m n), n
    being the largest sum of magnitudes that enters one unit. With a convolution Delta_R counts one patch and one map.
    """
    if epsilon is None or not OUTPUT_EPSILON < epsilon < math.inf:
        raise ConfigError(
            "the published variant cannot claim this epsilon",
            where="epsilon",
            got=epsilon,
            wanted=f"above {OUTPUT_EPSILON}, which the output layer takes of it",
        )
    entering = layer.weight.detach().abs().flatten(1).sum(dim=1)
    hidden = outputs[0] if isinstance(layer, nn.Linear) else math.prod(outputs[1:])
    delta_r = paper_delta_r(layer.weight[0].numel(), hidden)
    gamma_x, gamma = delta_r / batch, 2 * delta_r / (batch * max(float(entering.max()), 1e-12))
    first = (epsilon - OUTPUT_EPSILON) / (1 + 1 / gamma + 1 / gamma_x)
    scale = delta_r / (batch * first) / _WIDTH
    return PaperNoise(scale, 2 * scale)


def paper_output_noise(batch: int, features: int) -> float:
    """The scale Delta_L2 / (m epsilon_2) of what coefficients of labels get, for ``features`` units before the last layer."""
    return paper_delta_l2(features) / (batch * OUTPUT_EPSILON)
