"""Secure-SGD: DP-SGD on a network with redistributed noise after its first layer, both proofs at once.

As published, r is computed from the training records and nothing pays for it. Here r is learned with the other weights, under
the same private steps; ``redistribution=training`` estimates it privately and the ledger counts that.
"""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import Repeats
from twinproof.training.loss import mean_cross_entropy

SECURESGD = Recipe(
    name="securesgd",
    summary="DP-SGD on a network with Gaussian noise after its first layer, redistributed over its outputs",
    paper="Phan et al., IJCAI 2019 (Secure-SGD with the Heterogeneous Gaussian Mechanism)",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training with its own noise (linf; any norm with --norm)",
    loss=mean_cross_entropy,
    augmentation=lambda settings: Repeats(settings.copies),
    defaults={
        "learning_rate": 0.5,
        "copies": 4,
        "noise_layer": {
            "place": "first-layer",
            "norm": "linf",
            "epsilon_r": 4.0,
            "delta_r": 1e-5,
            "mechanism": "heterogeneous",
            "weights": "parseval",
            "redistribution": "learned",
        },
    },
    published={"noise_layer": {"redistribution": "training"}},
)
