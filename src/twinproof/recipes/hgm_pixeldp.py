"""HGM-PixelDP: PixelDP with the Heterogeneous Gaussian Mechanism, whose noise follows the importance of the layer's outputs.

Not private in training, so that the redistribution vector may be computed from the training records as they are.
"""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import Repeats
from twinproof.training.loss import mean_cross_entropy

HGM_PIXELDP = Recipe(
    name="hgm-pixeldp",
    summary="ordinary SGD on a network with Gaussian noise after its first layer, redistributed over its outputs",
    paper="Phan et al., IJCAI 2019 (Heterogeneous Gaussian Mechanism)",
    private=False,
    privacy_status=Status.NONE,
    robustness="certified after training with its own noise (linf; any norm with --norm), with an epsilon_r above 1",
    loss=mean_cross_entropy,
    augmentation=lambda settings: Repeats(settings.copies),
    defaults={
        "learning_rate": 0.1,
        "copies": 4,
        "noise_layer": {
            "place": "first-layer",
            "norm": "linf",
            "epsilon_r": 4.0,
            "delta_r": 1e-5,
            "mechanism": "heterogeneous",
            "weights": "measure",
            "redistribution": "training",
        },
    },
    published={},
)
