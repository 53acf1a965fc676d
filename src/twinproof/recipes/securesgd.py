"""Secure-SGD: DP-SGD on a network with redistributed noise after its first layer, both proofs at once.

As published, r is computed from the training records and nothing pays for it. Here r is learned with the other weights, under
the same private steps; ``redistribution=training`` estimates it privately and the ledger counts that.
"""

from __future__ import annotations

from twinproof.recipes.noisy_recipe import LINF, noisy_recipe

SECURESGD = noisy_recipe(
    "securesgd",
    summary="DP-SGD on a network with Gaussian noise after its first layer, redistributed over its outputs",
    paper="Phan et al., IJCAI 2019 (Secure-SGD with the Heterogeneous Gaussian Mechanism)",
    private=True,
    robustness="certified after training with its own noise (linf; any norm with --norm)",
    noise_layer={**LINF, "mechanism": "heterogeneous", "weights": "parseval", "redistribution": "learned"},
)
