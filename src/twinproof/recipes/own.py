"""What a caller brings instead of naming it in the settings: a data set in memory, a network of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.runs.run import own_network_name


@dataclass(frozen=True)
class Own:
    """A data set and a network from the caller, or None for what the settings name."""

    dataset: Dataset | None = None
    network: nn.Module | None = None

    def named(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with the names under which these are written down; a second source for the same thing is refused."""
        named = dict(settings)
        for key, mine in (("data", self.dataset), ("model", self.network)):
            if mine is not None and settings.get(key) is not None:
                raise ConfigError(
                    f"{key} is given twice", where=key, got=f"{settings[key]!r}, and an object", wanted="one of the two"
                )
        if self.dataset is not None:
            named["data"] = {"source": self.dataset.name}
        if self.network is not None:
            named["model"] = own_network_name(self.network)
        return named

    def network_copy(self, name: str) -> nn.Module:
        """A copy of the caller's network, which stays as it is; refused if it is not the one that ``name`` says."""
        if self.network is None or own_network_name(self.network) != name:
            raise ConfigError(
                "the run trains a network of your own",
                where="network",
                got="no network" if self.network is None else own_network_name(self.network),
                wanted=name,
                fix="give the module: train(..., network=...)",
            )
        return copy.deepcopy(self.network)
