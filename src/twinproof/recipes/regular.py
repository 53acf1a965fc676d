"""Ordinary training: no privacy, no noise. The upper end of every comparison."""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import OriginalOnly
from twinproof.training.loss import mean_cross_entropy

REGULAR = Recipe(
    name="regular",
    summary="ordinary SGD on the records as they are",
    paper="baseline 'Regular' of DP-CERT (Augment then Smooth, TMLR 2024)",
    private=False,
    privacy_status=Status.NONE,
    robustness="certified after training by randomized smoothing (l2); small radii, since it never saw noise",
    loss=mean_cross_entropy,
    augmentation=lambda settings: OriginalOnly(),
    defaults={"learning_rate": 0.05, "copies": 0},
)
