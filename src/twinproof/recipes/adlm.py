"""AdLM: the adaptive Laplace mechanism, more noise in the first affine layer where a feature matters less to the answer.

Sound: how relevant each output of the first layer is, by layer-wise propagation at the initial weights, is estimated once from
the training records by a Gaussian mechanism that the ledger counts; the network has Laplace noise of those scales behind that
layer, and is trained by DP-SGD on the paper's polynomial loss. As published, the relevance is taken as it is, noise is drawn
once, and a functional mechanism on the output layer takes the place of DP-SGD: refuted (``twinproof-papers``).
"""

from __future__ import annotations

from dataclasses import replace

from twinproof.recipes.pixeldp import noisy_recipe
from twinproof.recipes.recipe import Shares
from twinproof.training.stobatch import balanced_cross_entropy

_NOISY = noisy_recipe(
    "adlm",
    summary="DP-SGD on a Taylor loss, with Laplace noise after the first layer, less of it where a feature is relevant",
    paper="Phan et al., ICDM 2017 (Adaptive Laplace Mechanism)",
    private=True,
    robustness="certified after training with its own noise (l1; any norm with --norm); the paper claims none",
    noise_layer={
        "place": "first-layer",
        "law": "laplace",
        "mechanism": "laplace",
        "norm": "l1",
        "attack_bound": 0.02,
        "epsilon_r": 1.0,
        "weights": "measure",
        "redistribution": "training",
        "floor": 0.25,
        "r_clip": 1.0,
    },
)

ADLM = replace(
    _NOISY,
    defaults={**_NOISY.defaults, "learning_rate": 1.0},
    loss=balanced_cross_entropy,  # the paper's polynomial, from a start that clipped gradients can use
    shares=Shares.RELEVANCE,
)
