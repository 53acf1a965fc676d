"""DP-CERT: Gaussian augmentation, SmoothAdv, stability training, consistency and MACER.

The average over copies is the gradient of one function of one record, so it is clipped once, and neither the number of copies
nor their noise changes the sensitivity (guarantees of DP-SGD hold as they are).

loss = mean cross-entropy of all copies + weight * mean over noisy copies j of KL(softmax(original) || softmax(copy j)), with
the gradient through both sides. The authors' program pairs rows of different records; here a loss is given one record.

loss = mean cross-entropy of all copies + weight * mean over noisy copies j of KL(average || softmax(copy j)) + eta * entropy of
the average, which is taken over the noisy copies of this one record.

The movement is found from the record, its label, its fresh noise and the present weights, which are private already: the
gradient is still a function of one record, clipped once. The authors' program descends and moves copies of one record by what
was found for another; here the ascent is mapped over records (``twinproof.training.copies``).

The term of ``dpcert-consistency`` can be switched on: between the noisy copies of the record, where they were moved to.

loss = mean cross-entropy of all copies + weight * sigma / 2 * (macer_gamma - margin), the second term only for a record that
the average prediction gets right by a margin of at most macer_gamma. The margin is Phi^-1(pA) - Phi^-1(pB), pA and pB being the
two largest entries of the average of softmax(beta * logits) over all copies; sigma / 2 times it estimates the record's radius.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twinproof.guarantee import Status
from twinproof.recipes.recipe import Recipe, RecordSettings, reading
from twinproof.training.copies import Ascent
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import GaussianCopies
from twinproof.training.per_example.paths import RecordLoss

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
    loss_of=_stability_loss,
    fewest_copies=1,
    needs_originals=True,
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


def _ascent(settings: RecordSettings) -> Ascent:
    regulariser = settings.regulariser
    return Ascent(
        reading(regulariser, "radius"),
        int(reading(regulariser, "attack_steps")),
        int(reading(regulariser, "warm_up_epochs")),
        1 / settings.sample_rate,
    )


DPCERT_SMOOTHADV = Recipe(
    name="dpcert-smoothadv",
    summary="dpcert-gaussian, with each record's noisy copies moved against the smoothed classifier first",
    paper="DP-SmoothAdv of DP-CERT (Augment then Smooth, TMLR 2024); Salman et al., NeurIPS 2019",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    # The ascent needs the record itself to stay in its range; where the original is not wanted, it is dropped afterwards.
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma),
    defaults={
        "copies": 2,
        "regulariser": {"radius": 0.25, "attack_steps": 2, "warm_up_epochs": 10, "weight": 0.0, "eta": 0.0},
    },
    loss_of=consistent_loss,
    ascent=_ascent,
    fewest_copies=1,
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
    loss_of=_macer_loss,
    fewest_copies=1,
)
