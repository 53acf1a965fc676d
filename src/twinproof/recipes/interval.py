"""Deterministic robustness: DP-SGD on each record's worst case in an linf ball, bounded by interval bound propagation.

loss of one record = (1 - share) cross-entropy + share cross-entropy of the worst case, both sizes growing over the first steps.

The worst case is a function of that record and the weights, so that clipping bounds its gradient, and the accounting is that of
DP-SGD. Nothing is drawn at the input or inside the network: the released network is an ordinary one, whose certificates hold
with certainty instead of at a confidence level. Randomized smoothing cannot certify such sizes in linf: its radii shrink with
the root of the input's size.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from twinproof.guarantee import Status
from twinproof.layers.interval import begin_for_bounds, interval_network
from twinproof.recipes.recipe import Recipe, RecordSettings, Start
from twinproof.training.interval import Growth, IntervalView, interval_loss
from twinproof.training.passes import Repeats

SECTION = "interval"


class IntervalConfig(BaseModel):
    """Settings of training with interval bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: float = Field(default=0.11, gt=0, le=1, description="linf size of the ball that is trained for, in input units")
    share: float = Field(
        default=0.9, ge=0, le=1, description="weight of the worst case in the loss; the rest is the record's own"
    )
    ramp: float = Field(default=0.5, ge=0, le=1, description="fraction of the steps after which size and share are whole")
    start: float = Field(default=0.0, ge=0, le=1, description="fraction of the steps after which they begin to grow")

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.start > self.ramp:
            raise ValueError("start must be at most ramp")
        return self


def interval_settings(settings: object) -> IntervalConfig:
    """The section of a run's settings: the schema of the recipe's settings has it."""
    found: IntervalConfig = getattr(settings, SECTION)
    return found


def growth_of(settings: RecordSettings) -> Growth:
    """How the ball grows over the steps of a run."""
    found = interval_settings(settings)
    return Growth(found.size, found.share, settings.steps, found.ramp, found.start)


INTERVAL = Recipe(
    name="interval",
    summary="DP-SGD on each record's worst case in an linf ball, bounded by interval bound propagation",
    paper="ours; bounds of Gowal et al. (ICCV 2019), weights to begin with of Shi et al. (NeurIPS 2021)",
    private=True,
    privacy_status=Status.PROVEN,
    robustness="deterministic linf certificates by interval bounds",
    loss=interval_loss,
    augmentation=lambda settings: Repeats(),
    defaults={
        "copies": 0,
        "learning_rate": 8.0,
        "epochs": 54.6,  # 800 steps at the batch size below
        "schedule": "cosine",
        SECTION: IntervalConfig(),
    },
    ascent=growth_of,
    view=IntervalView,
    start=Start(
        network=interval_network,
        from_prior=True,
        initialise=begin_for_bounds,
        prior_level=lambda settings: interval_settings(settings).size,
        batches_per_epoch=14.65,  # 4,096 of MNIST's 60,000 records
    ),
)
