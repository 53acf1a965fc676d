"""DP-CERT with Gaussian augmentation: each record's noisy copies and the record itself, averaged before clipping.

The average over copies is the gradient of one function of one record, so it is clipped once, and neither the number of copies
nor their noise changes the sensitivity (guarantees of DP-SGD hold as they are).
"""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy

DPCERT_GAUSSIAN = Recipe(
    name="dpcert-gaussian",
    summary="DP-SGD on the average gradient of each record and its Gaussian copies",
    paper="DP-Gaussian of DP-CERT (Augment then Smooth, TMLR 2024)",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={"copies": 2},
    fewest_copies=0,
)
