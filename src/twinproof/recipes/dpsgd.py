"""DP-SGD: per-example gradients, clipped, summed and noised under Poisson sampling."""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import OriginalOnly
from twinproof.training.loss import mean_cross_entropy

DPSGD = Recipe(
    name="dpsgd",
    summary="DP-SGD on the records as they are",
    paper="Abadi et al., CCS 2016; baseline 'DPSGD' of DP-CERT",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2); small radii, since it never saw noise",
    loss=mean_cross_entropy,
    augmentation=lambda settings: OriginalOnly(),
    defaults={"copies": 0},
)
