"""``variant=published``: the papers' systems by their own formulas, with what is wrong about each of them."""

from __future__ import annotations

from torch import nn, optim

from twinproof.guarantee import Status
from twinproof.layers.fixed_draws import FixedDrawsConstraint
from twinproof.recipes.recipe import PUBLISHED, OwnSteps, Variant
from twinproof.recipes.stobatch import stobatch_network
from twinproof.training.stobatch import taylor_cross_entropy
from twinproof_papers.published import adlm, stobatch
from twinproof_papers.published.formulas import paper_classic_sigma, paper_extended_sigma

_DEVIATIONS = {"classic": paper_classic_sigma, "extended": paper_extended_sigma, "heterogeneous": paper_extended_sigma}
_FROM_TRAINING = {"noise_layer": {"redistribution": "training"}}
_SMALLEST_SIDE = 4  # of images that the paper's network can read at all


def _adam(model: nn.Module, learning_rate: float) -> optim.Optimizer:
    """As the authors did. On a GPU the update is a recording, which cannot count steps on the host."""
    return optim.Adam(model.parameters(), lr=learning_rate, capturable=next(model.parameters()).is_cuda)


def _with_noise_layer(recipe: str, **changes: object) -> Variant:
    """The noise of the printed formulas; r from the training records, where it is taken from them, without paying for it."""
    return Variant(recipe, PUBLISHED, Status.PUBLISHED, defaults=changes, deviations=_DEVIATIONS, unpaid_shares=True)


PIXELDP = _with_noise_layer("pixeldp")
HGM_PIXELDP = _with_noise_layer("hgm-pixeldp")
SECURESGD = _with_noise_layer("securesgd", **_FROM_TRAINING)
SECURESGD_AGM = _with_noise_layer("securesgd-agm")
ADLM = Variant(
    "adlm",
    PUBLISHED,
    Status.REFUTED,
    refutation=adlm.REFUTATION,
    defaults={"learning_rate": 5e-4, "copies": 1, **_FROM_TRAINING},
    deviations=_DEVIATIONS,
    unpaid_shares=True,
    loss=taylor_cross_entropy,
    steps=OwnSteps(adlm.OneDraw, adlm.parts_for_noise),
    optimizer=_adam,
)
STOBATCH = Variant(
    "stobatch",
    PUBLISHED,
    Status.REFUTED,
    refutation=stobatch.REFUTATION,
    defaults={
        "learning_rate": 1e-4,
        "epochs": 200,
        "regulariser": {"attack_size": 0.5, "attack_steps": 10, "attack_stride": 1.0},
    },
    section=("trainers", stobatch.TrainersConfig),
    deviations=_DEVIATIONS,
    unpaid_shares=True,
    steps=OwnSteps(stobatch.published_source, stobatch.ends_of),
    optimizer=_adam,
    default_network=lambda shape: stobatch_network(shape, _SMALLEST_SIDE),
    network=stobatch.published_network,
    prepare=stobatch.prepare,
    constraint=FixedDrawsConstraint,
)
