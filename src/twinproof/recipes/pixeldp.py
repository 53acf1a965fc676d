"""PixelDP, HGM-PixelDP and Secure-SGD (HGM, AGM): noise behind the first layer.

PixelDP and HGM-PixelDP do not train privately: their (epsilon, delta) are about the pixels of one input, not about the training
records, so that HGM-PixelDP may compute the redistribution vector r from these as they are. Secure-SGD trains by DP-SGD. As
published, it computes r from the training records and nothing pays for it. Here r is a weight, learned under the same private
steps; ``redistribution=training`` estimates it by a mechanism that the ledger counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import Repeats

LINF: Mapping[str, Any] = {"place": "first-layer", "norm": "linf", "epsilon_r": 4.0, "delta_r": 1e-5}
"""Where Phan et al. 2019 put the noise on MNIST, and how much of it."""


def noisy_recipe(
    name: str, *, summary: str, paper: str, private: bool, robustness: str, noise_layer: Mapping[str, Any]
) -> Recipe:
    """A recipe with a noise layer of these settings."""
    return Recipe(
        name=name,
        summary=summary,
        paper=paper,
        private=private,
        privacy_status=Status.PROVEN if private else Status.NONE,
        robustness=robustness,
        loss=mean_cross_entropy,
        augmentation=lambda settings: Repeats(settings.copies),
        defaults={"learning_rate": 0.5 if private else 0.1, "copies": 4, "noise_layer": dict(noise_layer)},
    )


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

HGM_PIXELDP = noisy_recipe(
    "hgm-pixeldp",
    summary="ordinary SGD on a network with Gaussian noise after its first layer, redistributed over its outputs",
    paper="Phan et al., IJCAI 2019 (Heterogeneous Gaussian Mechanism)",
    private=False,
    robustness="certified after training with its own noise (linf; any norm with --norm), with an epsilon_r above 1",
    noise_layer={**LINF, "mechanism": "heterogeneous", "weights": "measure", "redistribution": "training"},
)

SECURESGD = noisy_recipe(
    "securesgd",
    summary="DP-SGD on a network with Gaussian noise after its first layer, redistributed over its outputs",
    paper="Phan et al., IJCAI 2019 (Secure-SGD with the Heterogeneous Gaussian Mechanism)",
    private=True,
    robustness="certified after training with its own noise (linf; any norm with --norm)",
    noise_layer={**LINF, "mechanism": "heterogeneous", "weights": "parseval", "redistribution": "learned"},
)

SECURESGD_AGM = noisy_recipe(
    "securesgd-agm",
    summary="DP-SGD on a network with equal Gaussian noise on the outputs of its first layer",
    paper="Phan et al., IJCAI 2019 (Secure-SGD with the analytic Gaussian mechanism of Balle and Wang 2018)",
    private=True,
    robustness="certified after training with its own noise (linf; any norm with --norm)",
    noise_layer={**LINF, "mechanism": "analytic", "weights": "parseval", "redistribution": "uniform"},
)
