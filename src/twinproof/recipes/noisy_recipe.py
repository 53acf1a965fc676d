"""What recipes with noise inside the network share: each record is seen several times, with noise of its own each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import Repeats
from twinproof.training.loss import mean_cross_entropy

LINF: Mapping[str, Any] = {"place": "first-layer", "norm": "linf", "epsilon_r": 4.0, "delta_r": 1e-5}
"""Where Phan et al. 2019 put the noise on MNIST, and how much of it."""


def noisy_recipe(
    name: str,
    *,
    summary: str,
    paper: str,
    private: bool,
    robustness: str,
    noise_layer: Mapping[str, Any],
) -> Recipe:
    """A recipe whose network has a noise layer with these settings."""
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
