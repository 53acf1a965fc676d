"""PSAC: DP-SGD whose gradients are scaled by per-sample adaptive clipping instead of being cut off at the bound.

Both formulas keep every record's part below the clipping norm (``twinproof.privacy.clipping``), so that the accounting is that
of DP-SGD. ``clip_rule`` chooses the formula of the paper or that of DP-CERT's program; any private recipe takes it.
"""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.privacy.clipping import ClipRule
from twinproof.recipes.recipe import Recipe
from twinproof.training.augmentation import OriginalOnly
from twinproof.training.loss import mean_cross_entropy

PSAC = Recipe(
    name="psac",
    summary="DP-SGD on the records as they are, gradients scaled by per-sample adaptive clipping",
    paper="Xia et al., AAAI 2023; baseline 'PSAC' of DP-CERT",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2); small radii, since it never saw noise",
    loss=mean_cross_entropy,
    augmentation=lambda settings: OriginalOnly(),
    defaults={"copies": 0, "clip_rule": ClipRule.PSAC_PAPER.value, "clip_r": 0.01},
)
