"""The settings of StoBatch's local trainers (Algorithm 4), which its published variant alone has."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from twinproof.errors import ConfigError
from twinproof.training.published_stobatch.trainers import LocalTrainers

FIELD = "trainers"


class TrainersConfig(BaseModel):
    """How many local trainers there are, and how many of them a step picks at random."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(ge=1, description="trainers that share out the fixed batches; the paper's are records / (2 batch_size)")
    per_step: int = Field(ge=1, description="of them, picked at random for each step")

    @property
    def trainers(self) -> LocalTrainers:
        """What the steps need to know of them."""
        return LocalTrainers(self.count, self.per_step)


def check_trainers(steps: str, trainers: TrainersConfig | None, *, known: bool) -> None:
    """Refuses local trainers where a recipe's ``steps`` know none."""
    if trainers is None or known:
        return
    raise ConfigError(
        "these steps know no local trainers",
        where=FIELD,
        got=f"{trainers.count} trainers, with {steps}",
        wanted="stobatch with variant published",
        fix="leave trainers out; several processes share any recipe's steps: torchrun --nproc-per-node N -m twinproof train",
    )
