"""The house recipe: what is known to help a private and smoothed network, together, and all of it accounted.

Each record and its Gaussian copies are averaged before clipping, as in DP-CERT, with more copies, large batches, a network that
starts from weights learned on generated images, and a moving average of the weights in place of the last ones; a consistency
term between copies of one record can be switched on. None of it changes the sensitivity of a step, and what the network starts
from is the same for everybody, so the accounting is that of DP-SGD, by privacy loss distributions.
"""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.layers.networks import default_network
from twinproof.layers.prior import PRIOR_NETWORK, PRIOR_WIDTH, has_prior
from twinproof.recipes.dpcert import consistent_loss
from twinproof.recipes.recipe import Recipe
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import GaussianCopies

_SMALLEST_SIDE = 20


def _network(shape: tuple[int, ...]) -> str:
    """The one that starts from learned weights, for images of one channel and about the size that it learned them on."""
    learned = has_prior(PRIOR_NETWORK, shape, PRIOR_WIDTH) and min(shape[1:]) >= _SMALLEST_SIDE
    return PRIOR_NETWORK if learned else default_network(shape)


TWINPROOF = Recipe(
    name="twinproof",
    summary="the house recipe: DP-SGD on Gaussian copies, from weights learned on generated images, averaged",
    paper="ours; beyond DP-Gaussian of DP-CERT (Augment then Smooth, TMLR 2024)",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training by randomized smoothing (l2), trained for the noise it is certified with",
    loss=mean_cross_entropy,
    augmentation=lambda settings: GaussianCopies(settings.copies, settings.sigma, settings.originals),
    defaults={
        "copies": 8,
        "width": PRIOR_WIDTH,
        "learning_rate": 2.0,
        "epochs": 40,
        "averaging": 0.99,
        "regulariser": {"weight": 0.0, "eta": 0.0},
    },
    loss_of=consistent_loss,
    fewest_copies=1,
    network=_network,
    starts_from_prior=True,
)
