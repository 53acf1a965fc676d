"""PixelDP: a noise layer after the first linear map, whose norm is held at 1; certified by differential privacy of the input.

Not private in training: its (epsilon, delta) speak of the pixels of one input, never of the training records.
"""

from __future__ import annotations

from twinproof.recipes.noisy_recipe import noisy_recipe

PIXELDP = noisy_recipe(
    "pixeldp",
    summary="ordinary SGD on a network with Gaussian noise after its first layer, which Parseval steps hold at norm 1",
    paper="Lecuyer et al., S&P 2019",
    private=False,
    robustness="certified after training with its own noise (l2; any norm with --norm), made for attacks up to its bound",
    noise_layer={
        "place": "first-layer",
        "norm": "l2",
        "attack_bound": 0.1,
        "epsilon_r": 1.0,
        "delta_r": 0.05,
        "mechanism": "classic",
        "weights": "parseval",
    },
)
