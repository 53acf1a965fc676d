"""DP-CERT with SmoothAdv: noisy copies of a record are moved where the smoothed classifier errs, then averaged and clipped.

The movement is found from the record, its label, its fresh noise and the present weights, which are private already: the
gradient is still a function of one record, clipped once. The authors' program descends and moves copies of one record by what
was found for another; here the ascent is mapped over records (``twinproof.training.adversarial_copies``).

The term of ``dpcert-consistency`` can be switched on: between the noisy copies of the record, where they were moved to.
"""

from __future__ import annotations

from twinproof.guarantee import Status
from twinproof.recipes.dpcert_consistency import consistent_loss
from twinproof.recipes.recipe import Recipe, RecordSettings
from twinproof.recipes.regulariser import reading
from twinproof.training.adversarial_copies import Ascent
from twinproof.training.augmentation import GaussianCopies
from twinproof.training.loss import mean_cross_entropy


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
