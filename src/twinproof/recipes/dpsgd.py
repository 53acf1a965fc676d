"""Training without noise in the network: ordinary, Gaussian augmentation, DP-SGD and PSAC.

PSAC's formulas keep the norm of every record's gradient below the clipping norm (``twinproof.privacy.plan``), so the accounting
is that of DP-SGD. ``clip_rule`` chooses the formula of the paper or that of DP-CERT's program, for any private recipe.
"""

from __future__ import annotations

from functools import partial

from twinproof.guarantee import Status
from twinproof.privacy.plan import ClipRule
from twinproof.recipes.recipe import CopySettings, NoisyCopies, Recipe
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import GaussianCopies, Repeats

SMALL_RADII = "certified after training by randomized smoothing (l2); small radii, since it never saw noise"
TRAINED_ON_NOISE = "certified after training by randomized smoothing (l2), trained for the noise it is certified with"


def gaussian_copies(settings: CopySettings) -> GaussianCopies:
    """The record, unless the settings leave it out, and its noisy copies."""
    return GaussianCopies(settings.copies, settings.sigma, settings.originals)


REGULAR = Recipe(
    name="regular",
    summary="ordinary SGD on the records as they are",
    paper="baseline 'Regular' of DP-CERT (Augment then Smooth, TMLR 2024)",
    private=False,
    privacy_status=Status.NONE,
    robustness=SMALL_RADII,
    loss=mean_cross_entropy,
    augmentation=lambda settings: Repeats(),
    defaults={"learning_rate": 0.05, "copies": 0},
)

GAUSSIAN = Recipe(
    name="gaussian",
    summary="ordinary SGD on Gaussian copies of the records: the upper end of what private smoothing could reach",
    paper="Certified adversarial robustness via randomized smoothing (Cohen et al., ICML 2019)",
    private=False,
    privacy_status=Status.NONE,
    robustness=TRAINED_ON_NOISE,
    loss=mean_cross_entropy,
    augmentation=gaussian_copies,
    defaults={"learning_rate": 0.05, "copies": 1, "originals": False, "schedule": "cosine"},
    noisy=NoisyCopies(0),
)

_private = partial(
    Recipe,
    private=True,
    privacy_status=Status.PROVEN,
    robustness=SMALL_RADII,
    loss=mean_cross_entropy,
    augmentation=lambda settings: Repeats(),
)
DPSGD = _private(
    name="dpsgd",
    summary="DP-SGD on the records as they are",
    paper="Abadi et al., CCS 2016; baseline 'DPSGD' of DP-CERT",
    defaults={"copies": 0},
)
PSAC = _private(
    name="psac",
    summary="DP-SGD on the records as they are, gradients scaled by per-sample adaptive clipping",
    paper="Xia et al., AAAI 2023; baseline 'PSAC' of DP-CERT",
    defaults={"copies": 0, "clip_rule": ClipRule.PSAC_PAPER.value, "clip_r": 0.01},
)
