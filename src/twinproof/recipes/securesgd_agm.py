"""Secure-SGD with the analytic Gaussian mechanism: DP-SGD with equal noise on all outputs of the first layer."""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import Repeats
from twinproof.training.loss import mean_cross_entropy

SECURESGD_AGM = Recipe(
    name="securesgd-agm",
    summary="DP-SGD on a network with equal Gaussian noise on the outputs of its first layer",
    paper="Phan et al., IJCAI 2019 (Secure-SGD with the analytic Gaussian mechanism of Balle and Wang 2018)",
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
            "mechanism": "analytic",
            "weights": "parseval",
            "redistribution": "uniform",
        },
    },
    published={},
)
