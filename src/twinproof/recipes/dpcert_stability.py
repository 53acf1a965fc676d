"""DP-CERT with stability training: predictions on noisy copies are pulled towards the prediction on the record itself.

loss = mean cross-entropy of all copies + weight * mean over noisy copies j of KL(softmax(original) || softmax(copy j)), with
the gradient through both sides. The authors' program pairs rows of different records; here a loss is given one record.
"""

from __future__ import annotations

from torch import Tensor

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe, RecordSettings
from twinproof.recipes.regulariser import reading
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy
from twinproof.training.per_example.path import RecordLoss


def stability(logits: Tensor) -> Tensor:
    """Mean divergence of the noisy rows from row 0, the original, of one record's ``logits`` (copies, classes)."""
    logs = logits.log_softmax(dim=-1)
    original, noisy = logs[:1], logs[1:]
    return (original.exp() * (original - noisy)).sum(dim=-1).mean()


def _loss(settings: RecordSettings) -> RecordLoss:
    weight = reading(settings.regulariser, "weight")

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return mean_cross_entropy(logits, label) + weight * stability(logits)

    return loss


DPCERT_STABILITY = Recipe(
    name="dpcert-stability",
    summary="dpcert-gaussian, with predictions on noisy copies pulled towards the one on the record",
    paper="DP-Stability of DP-CERT (Augment then Smooth, TMLR 2024); Li et al., NeurIPS 2019",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={"copies": 2, "regulariser": {"weight": 0.1}},
    loss_of=_loss,
    fewest_copies=1,
    needs_originals=True,
)
