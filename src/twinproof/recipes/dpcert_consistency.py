"""DP-CERT with consistency regularisation: noisy copies of a record should be predicted alike, and surely.

loss = mean cross-entropy of all copies + weight * mean over noisy copies j of KL(average || softmax(copy j)) + eta * entropy of
the average, which is taken over the noisy copies of this one record.
"""

from __future__ import annotations

import math

from torch import Tensor

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe, RecordSettings
from twinproof.recipes.regulariser import reading
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy
from twinproof.training.per_example.path import RecordLoss


def consistency(noisy: Tensor, weight: float, eta: float) -> Tensor:
    """The regulariser on the logits of one record's noisy copies, ``noisy`` (copies, classes)."""
    logs = noisy.log_softmax(dim=-1)
    average = logs.logsumexp(dim=0) - math.log(noisy.shape[0])
    shares = average.exp()
    divergence = (shares * (average - logs)).sum(dim=-1).mean()
    return weight * divergence - eta * (shares * average).sum()


def consistent_loss(settings: RecordSettings) -> RecordLoss:
    """Cross-entropy of all copies and the term of the noisy ones, with the settings' ``weight`` and ``eta``; both 0: off."""
    weight, eta = (reading(settings.regulariser, name) for name in ("weight", "eta"))
    if weight == eta == 0:
        return mean_cross_entropy
    first = 1 if settings.originals else 0

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return mean_cross_entropy(logits, label) + consistency(logits[first:], weight, eta)

    return loss


DPCERT_CONSISTENCY = Recipe(
    name="dpcert-consistency",
    summary="dpcert-gaussian, with noisy copies of a record predicted alike and surely",
    paper="DP-Gaussian with Consistency of DP-CERT (Augment then Smooth, TMLR 2024); Jeong and Shin, NeurIPS 2020",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={"copies": 2, "regulariser": {"weight": 0.5, "eta": 0.5}},
    loss_of=consistent_loss,
    fewest_copies=2,
)
