"""Secure-SGD with the analytic Gaussian mechanism: DP-SGD with equal noise on all outputs of the first layer."""

from __future__ import annotations

from twinproof.recipes.noisy_recipe import LINF, noisy_recipe

SECURESGD_AGM = noisy_recipe(
    "securesgd-agm",
    summary="DP-SGD on a network with equal Gaussian noise on the outputs of its first layer",
    paper="Phan et al., IJCAI 2019 (Secure-SGD with the analytic Gaussian mechanism of Balle and Wang 2018)",
    private=True,
    robustness="certified after training with its own noise (linf; any norm with --norm)",
    noise_layer={**LINF, "mechanism": "analytic", "weights": "parseval", "redistribution": "uniform"},
)
