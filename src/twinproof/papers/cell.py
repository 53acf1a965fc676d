"""A cell: one model trained once and measured in one way. Figures share the cells whose settings agree."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from twinproof.files import canonical_json
from twinproof.papers.measurement import Measurement
from twinproof.papers.prior_of_cell import told_prior
from twinproof.recipes.config import parse_train_config

_FORMER_SHARE = 0.2


@dataclass(frozen=True)
class Cell:
    """One repetition of one model. ``training`` is what ``train`` is given, apart from what only changes speed.

    A measurement that comes after another one is made on the other cell's run, so that no model is trained twice.
    """

    method: str
    repetition: int
    training: dict[str, Any] = field(hash=False)
    measurement: Measurement

    @property
    def base(self) -> Cell | None:
        """The cell whose run this one goes on with; None where it has its own."""
        earlier = self.measurement.after
        return None if earlier is None else replace(self, measurement=earlier)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as plain JSON values; what the recipe decides is written out."""
        config = parse_train_config(self.training)
        training = config.model_dump(mode="json", exclude={"performance"})
        # Kept results name cells by settings in which the public share had another name and a default.
        share = training["data"].pop("public_fraction")
        training["data"]["test_fraction"] = _FORMER_SHARE if share is None else share
        return {
            "method": self.method,
            "repetition": self.repetition,
            "training": training,
            "measurement": self.measurement.as_dict(),
            **told_prior(config),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the settings."""
        return hashlib.sha256(canonical_json(self.settings).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of its folder: readable first, then the digest that makes it unique."""
        known = {name: self.training.get(name) for name in ("epsilon", "sigma")}
        middle = "".join(f"-{name}-{value:g}" for name, value in known.items() if value is not None)
        return f"{self.method}{middle}-{self.repetition}-{self.digest[:12]}"
