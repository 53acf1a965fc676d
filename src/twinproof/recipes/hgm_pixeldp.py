"""HGM-PixelDP: PixelDP with the Heterogeneous Gaussian Mechanism, whose noise follows the importance of the layer's outputs.

Not private in training, so that the redistribution vector may be computed from the training records as they are.
"""

from __future__ import annotations

from twinproof.recipes.noisy_recipe import LINF, noisy_recipe

HGM_PIXELDP = noisy_recipe(
    "hgm-pixeldp",
    summary="ordinary SGD on a network with Gaussian noise after its first layer, redistributed over its outputs",
    paper="Phan et al., IJCAI 2019 (Heterogeneous Gaussian Mechanism)",
    private=False,
    robustness="certified after training with its own noise (linf; any norm with --norm), with an epsilon_r above 1",
    noise_layer={**LINF, "mechanism": "heterogeneous", "weights": "measure", "redistribution": "training"},
)
