"""DP-CERT: Gaussian augmentation, stability training, consistency, SmoothAdv and MACER.

Each record is averaged over its copies before it is clipped, so neither their number nor their noise changes the sensitivity
of a step, and the accounting is that of DP-SGD. The terms below are added to the mean cross-entropy of all copies of a record:

stability    weight * mean over noisy copies j of KL(softmax(original) || softmax(copy j)), with the gradient through both
             sides. The authors' program pairs rows of different records; here a loss is given one record.
consistency  weight * mean over noisy copies j of KL(average || softmax(copy j)) + eta * entropy of the average, which is taken
             over the noisy copies of this record.
MACER        weight * sigma / 2 * (macer_gamma - margin), only for a record that the average prediction gets right by a margin
             of at most macer_gamma. The margin is Phi^-1(pA) - Phi^-1(pB), where pA and pB are the two largest entries of the
             average of softmax(beta * logits) over all copies; sigma / 2 times it estimates the record's certified radius.

SmoothAdv moves the noisy copies against the smoothed classifier first, and can add the consistency term. The attack is found
from the record, its label, its fresh noise and the present weights, which are private already: the gradient is still a function
of one record. The authors' program descends and moves copies of one record by what was found for another; here the ascent is
mapped over records (``twinproof.training.copies``).
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from twinproof.guarantee import Status
from twinproof.recipes.dpsgd import TRAINED_ON_NOISE, gaussian_copies
from twinproof.recipes.recipe import NoisyCopies, Recipe, RecordSettings, reading
from twinproof.training.copies import Ascent
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import GaussianCopies
from twinproof.training.per_example.paths import RecordLoss

private_smoothing = partial(
    Recipe,
    private=True,
    privacy_status=Status.PROVEN,
    robustness=TRAINED_ON_NOISE,
    loss=mean_cross_entropy,
    augmentation=gaussian_copies,
)
"""A private recipe that trains on Gaussian copies and is certified by randomized smoothing."""

DPCERT_GAUSSIAN = private_smoothing(
    name="dpcert-gaussian",
    summary="DP-SGD on the average gradient of each record and its Gaussian copies",
    paper="DP-Gaussian of DP-CERT (Augment then Smooth, TMLR 2024)",
    defaults={"copies": 2},
    noisy=NoisyCopies(0),
)


def stability(logits: Tensor) -> Tensor:
    """Mean divergence of the noisy rows from row 0, the original, of one record's ``logits`` (copies, classes)."""
    logs = logits.log_softmax(dim=-1)
    original, noisy = logs[:1], logs[1:]
    return (original.exp() * (original - noisy)).sum(dim=-1).mean()


def _stability_loss(settings: RecordSettings) -> RecordLoss:
    weight = reading(settings.regulariser, "weight")

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return mean_cross_entropy(logits, label) + weight * stability(logits)

    return loss


DPCERT_STABILITY = private_smoothing(
    name="dpcert-stability",
    summary="dpcert-gaussian, with predictions on noisy copies pulled towards the one on the record",
    paper="DP-Stability of DP-CERT (Augment then Smooth, TMLR 2024); Li et al., NeurIPS 2019",
    defaults={"copies": 2, "regulariser": {"weight": 0.1}},
    loss_of=_stability_loss,
    noisy=NoisyCopies(1, need_originals=True),
)


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


DPCERT_CONSISTENCY = private_smoothing(
    name="dpcert-consistency",
    summary="dpcert-gaussian, with noisy copies of a record predicted alike and surely",
    paper="DP-Gaussian with Consistency of DP-CERT (Augment then Smooth, TMLR 2024); Jeong and Shin, NeurIPS 2020",
    defaults={"copies": 2, "regulariser": {"weight": 0.5, "eta": 0.5}},
    loss_of=consistent_loss,
    noisy=NoisyCopies(2),
)


def _ascent(settings: RecordSettings) -> Ascent:
    regulariser = settings.regulariser
    return Ascent(
        reading(regulariser, "radius"),
        int(reading(regulariser, "attack_steps")),
        int(reading(regulariser, "warm_up_epochs")),
        1 / settings.sample_rate,
    )


DPCERT_SMOOTHADV = private_smoothing(
    name="dpcert-smoothadv",
    summary="dpcert-gaussian, with each record's noisy copies moved against the smoothed classifier first",
    paper="DP-SmoothAdv of DP-CERT (Augment then Smooth, TMLR 2024); Salman et al., NeurIPS 2019",
    # The ascent needs the record itself to stay in its range; where the original is not wanted, it is dropped afterwards.
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma),
    defaults={"copies": 2, "regulariser": {"radius": 0.25, "attack_steps": 2, "warm_up_epochs": 10, "weight": 0.0, "eta": 0.0}},
    loss_of=consistent_loss,
    ascent=_ascent,
    noisy=NoisyCopies(1),
)


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


def _macer_loss(settings: RecordSettings) -> RecordLoss:
    weight, beta, gamma = (reading(settings.regulariser, name) for name in ("weight", "beta", "macer_gamma"))
    scale = weight * settings.sigma / 2

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return mean_cross_entropy(logits, label) + scale * macer_hinge(logits, label, beta, gamma)

    return loss


DPCERT_MACER = private_smoothing(
    name="dpcert-macer",
    summary="dpcert-gaussian, with the estimated certified radius of rightly classified records made larger",
    paper="DP-MACER of DP-CERT (Augment then Smooth, TMLR 2024); Zhai et al., ICLR 2020",
    defaults={"copies": 2, "regulariser": {"weight": 16.0, "beta": 16.0, "macer_gamma": 8.0}},
    loss_of=_macer_loss,
    noisy=NoisyCopies(1),
)
