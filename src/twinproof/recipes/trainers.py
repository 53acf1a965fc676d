"""The settings of StoBatch's local trainers (Algorithm 4), which its published variant alone has."""

from __future__ import annotations

from collections.abc import Mapping

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


def check_trainers(steps: str, given: object, *, known: bool) -> None:
    """Refuses local trainers where ``steps``, a recipe's name and variant, know none.

    ``given`` is a record or what a user wrote in its place, which need not be complete: who asks the wrong recipe for trainers
    is not to be sent for the rest of their settings first.
    """
    if given is None or known:
        return
    raise ConfigError(
        f"the steps of {steps} know no local trainers",
        where=FIELD,
        got=_said(given),
        wanted="stobatch with variant published",
        fix="leave trainers out; several processes share any recipe's steps: torchrun --nproc-per-node N -m twinproof train",
    )


def _said(given: object) -> str:
    """The settings by their full names."""
    values = given.model_dump() if isinstance(given, TrainersConfig) else given
    if isinstance(values, Mapping) and values:
        return ", ".join(f"{FIELD}.{name} = {value}" for name, value in values.items())
    return f"{FIELD} = {values}"
