"""StoBatch: noise before and behind the first layer, an auto-encoder's objective for that layer, an ensemble of attacks.

loss of one record = [mean over benign copies + xi * mean over adversarial copies of the Taylor cross-entropy] / (1 + xi)
                     + weight * mean over all copies of the reconstruction's cost.

The paper's noise is drawn once for the whole training and its epsilon is refuted. Here architecture, objectives and ensemble
stay, and DP-SGD trains them: a record's copies are made from that record alone, its gradient is clipped once, every step is in
the ledger. Both noises are drawn anew in every pass, in training as in certification.
"""

from __future__ import annotations

from torch import Tensor

from twinproof.guarantee import Status
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof.recipes.recipe import Recipe, RecordSettings, RegulariserConfig, Start, reading
from twinproof.training.passes import Repeats
from twinproof.training.per_example.paths import RecordLoss
from twinproof.training.stobatch import ATTACKS, Ensemble, ReconstructingView, balanced_cross_entropy

# The paper's network divides sides by 8: of smaller images it leaves one point or four, too few to learn from in privacy.
_SMALLEST_SIDE = 16


def stobatch_network(shape: tuple[int, ...], smallest: int = _SMALLEST_SIDE) -> str:
    """The paper's network for images whose sides are at least ``smallest``."""
    return "stobatch-cnn" if len(shape) == 3 and min(shape[1:]) >= smallest else "mlp"


def ensemble_of(regulariser: RegulariserConfig | None) -> Ensemble:
    """The attacks that the settings describe."""
    return Ensemble(
        reading(regulariser, "attack_size"), int(reading(regulariser, "attack_steps")), reading(regulariser, "attack_stride")
    )


def stobatch_loss(settings: RecordSettings) -> RecordLoss:
    """The loss of one record: of the outputs of its benign copies, then its adversarial ones; the last column is the cost."""
    benign = settings.copies
    xi, weight = (reading(settings.regulariser, name) for name in ("xi", "weight"))

    def loss(outputs: Tensor, label: Tensor) -> Tensor:
        logits, costs = outputs[:, :-1], outputs[:, -1]
        clean, attacked = (balanced_cross_entropy(rows, label) for rows in (logits[:benign], logits[benign:]))
        return (clean + xi * attacked) / (1 + xi) + weight * costs.mean()

    return loss


STOBATCH = Recipe(
    name="stobatch",
    summary="DP-SGD with an auto-encoder's first layer, Laplace noise before and behind it, and an ensemble of attacks",
    paper="Phan et al., ICML 2020 (StoBatch)",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="certified after training with both of its own noises (linf; any norm with --norm)",
    loss=balanced_cross_entropy,
    augmentation=lambda settings: Repeats(settings.copies + len(ATTACKS)),
    defaults={
        "copies": 3,
        "learning_rate": 1.0,
        "regulariser": {"weight": 1.0, "xi": 1.0, "attack_size": 0.25, "attack_steps": 3, "attack_stride": 2.0},
        "noise_layer": {
            "place": BOTH_PLACES,
            "law": "laplace",
            "mechanism": "laplace",
            "norm": "linf",
            "epsilon_r": 8.0,
            "weights": "project",
            "hidden_share": 0.005,
        },
    },
    loss_of=stobatch_loss,
    ascent=lambda settings: ensemble_of(settings.regulariser),
    view=ReconstructingView,
    start=Start(stobatch_network),
)
