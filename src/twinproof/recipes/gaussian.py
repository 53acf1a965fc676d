"""Gaussian augmentation without privacy (Cohen et al. 2019): what privacy costs is measured against this."""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy

GAUSSIAN = Recipe(
    name="gaussian",
    summary="ordinary SGD on Gaussian copies of the records: the upper end of what private smoothing could reach",
    paper="Certified adversarial robustness via randomized smoothing (Cohen et al., ICML 2019)",
    private=False,
    privacy_status=Status.NONE,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={"learning_rate": 0.05, "copies": 1, "originals": False, "schedule": "cosine"},
    fewest_copies=0,
)
