"""DP-CERT with MACER: the certified radius of records that are classified right is made larger.

loss = mean cross-entropy of all copies + weight * sigma / 2 * (macer_gamma - margin), the second term only for a record that
the average prediction gets right by a margin of at most macer_gamma. The margin is Phi^-1(pA) - Phi^-1(pB), pA and pB being the
two largest entries of the average of softmax(beta * logits) over all copies; sigma / 2 times it estimates the record's radius.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe, RecordSettings
from twinproof.recipes.regulariser import reading
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy
from twinproof.training.per_example.path import RecordLoss


def macer_hinge(logits: Tensor, label: Tensor, beta: float, gamma: float) -> Tensor:
    """``gamma`` less the margin of one record's ``logits`` (copies, classes), 0 where the record does not count.

    A record counts where it is classified right and its margin is finite and at most ``gamma``. The gradient of one that does
    not is exactly zero.
    """
    shares, classes = (beta * logits).softmax(dim=-1).mean(dim=0).topk(2)
    counts = (classes[0] == label) & (_margin(shares.detach()) <= gamma)
    # What does not count is replaced before the quantile, whose slope is infinite at 0 and 1: 0 times it would be NaN.
    return torch.where(counts, gamma - _margin(torch.where(counts, shares, 0.5)), 0.0)


def _margin(shares: Tensor) -> Tensor:
    quantiles = torch.special.ndtri(shares)
    margin: Tensor = quantiles[0] - quantiles[1]
    return margin


def _loss(settings: RecordSettings) -> RecordLoss:
    weight, beta, gamma = (reading(settings.regulariser, name) for name in ("weight", "beta", "macer_gamma"))
    scale = weight * settings.sigma / 2

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return mean_cross_entropy(logits, label) + scale * macer_hinge(logits, label, beta, gamma)

    return loss


DPCERT_MACER = Recipe(
    name="dpcert-macer",
    summary="dpcert-gaussian, with the estimated certified radius of rightly classified records made larger",
    paper="DP-MACER of DP-CERT (Augment then Smooth, TMLR 2024); Zhai et al., ICLR 2020",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={"copies": 2, "regulariser": {"weight": 16.0, "beta": 16.0, "macer_gamma": 8.0}},
    loss_of=_loss,
    fewest_copies=1,
)
