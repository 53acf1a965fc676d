"""The house recipe: what is known to help a private and smoothed network, together, and all of it accounted.

Each record and its Gaussian copies are averaged before clipping, as in DP-CERT, with more copies, a wider network, large
batches, and a moving average of the weights in place of the last ones; a consistency term between copies of one record can be
switched on. None of it changes the sensitivity of a step, so the accounting is that of DP-SGD, by privacy loss distributions.
"""

from __future__ import annotations

from torch import Tensor

from twinproof.guarantee import Status
from twinproof.recipes.dpcert_consistency import consistency
from twinproof.recipes.recipe import Recipe, RecordSettings
from twinproof.recipes.regulariser import reading
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy
from twinproof.training.per_example.path import RecordLoss


def _loss(settings: RecordSettings) -> RecordLoss:
    weight, eta = (reading(settings.regulariser, name) for name in ("weight", "eta"))
    if weight == eta == 0:
        return mean_cross_entropy
    first = 1 if settings.originals else 0

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return mean_cross_entropy(logits, label) + consistency(logits[first:], weight, eta)

    return loss


TWINPROOF = Recipe(
    name="twinproof",
    summary="the house recipe: DP-SGD on Gaussian copies, a wider network and averaged weights",
    paper="ours; beyond DP-Gaussian of DP-CERT (Augment then Smooth, TMLR 2024)",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={
        "copies": 4,
        "width": 2,
        "learning_rate": 2.0,
        "epochs": 40,
        "averaging": 0.99,
        "regulariser": {"weight": 0.0, "eta": 0.0},
    },
    loss_of=_loss,
    fewest_copies=1,
)
