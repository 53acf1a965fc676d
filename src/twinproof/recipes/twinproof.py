"""The house recipe: what is known to help a private and smoothed network, combined.

Each record is averaged over its Gaussian copies before clipping, as in DP-CERT, with more copies, large batches, weights that
were first learned on generated images, and a moving average of the weights; a consistency term between the copies of a record
can be switched on. None of it changes the sensitivity of a step, and the first weights are the same for everybody, so the
accounting is that of DP-SGD.
"""

from __future__ import annotations

from twinproof.layers.networks import PRIOR_NETWORK, PRIOR_WIDTH, default_network, has_prior
from twinproof.recipes.dpcert import consistent_loss, private_smoothing
from twinproof.recipes.recipe import NoisyCopies, Start

_SMALLEST_SIDE = 20


def _network(shape: tuple[int, ...]) -> str:
    """The network with learned weights, for images of one channel and about the size that they were learned on."""
    learned = has_prior(PRIOR_NETWORK, shape, PRIOR_WIDTH) and min(shape[1:]) >= _SMALLEST_SIDE
    return PRIOR_NETWORK if learned else default_network(shape)


TWINPROOF = private_smoothing(
    name="twinproof",
    summary="the house recipe: DP-SGD on Gaussian copies, from weights learned on generated images, averaged",
    paper="ours; beyond DP-Gaussian of DP-CERT (Augment then Smooth, TMLR 2024)",
    defaults={
        "copies": 8,
        "width": PRIOR_WIDTH,
        "learning_rate": 2.0,
        "epochs": 40,
        "averaging": 0.99,
        "regulariser": {"weight": 0.0, "eta": 0.0},
    },
    loss_of=consistent_loss,
    noisy=NoisyCopies(1),
    start=Start(_network, from_prior=True),
)
