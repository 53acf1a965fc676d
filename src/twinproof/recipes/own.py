"""What a caller brings instead of naming it in the settings: a data set in memory, a network of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.recipes.guarantees import OWN_NETWORK_ASSUMPTIONS
from twinproof.runs.layout import read_run_json
from twinproof.runs.record import write_run_json
from twinproof.runs.run import own_network_name

_FIELD = "own_network"


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


def describe_own_network(codes: Iterable[str]) -> dict[str, Any]:
    """The entry of ``run.json`` for a run that trains an owner's own network privately."""
    return {_FIELD: {"assumptions": sorted(set(codes))}}


def own_network_assumptions(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The codes of what could not be shown about the run's own network; None for a built-in network."""
    entry = record.get(_FIELD)
    if entry is None:
        return None
    codes = entry.get("assumptions") if isinstance(entry, Mapping) else None
    if not isinstance(codes, list) or any(code not in OWN_NETWORK_ASSUMPTIONS for code in codes):
        raise RunError(
            "what was found out about the network cannot be read",
            where=f"run.json, {_FIELD}",
            got=entry,
            wanted=f"a list of assumptions, each one of: {', '.join(OWN_NETWORK_ASSUMPTIONS)}",
            fix="restore run.json, or start a new run",
        )
    return tuple(codes)


def note_own_network(root: Path, codes: Iterable[str]) -> None:
    """Adds codes to those in ``run.json``: an assumption stays, whatever a later session can show."""
    record = read_run_json(root)
    entry = describe_own_network([*(own_network_assumptions(record) or ()), *codes])
    if record.get(_FIELD) != entry[_FIELD]:
        write_run_json(root, record | entry)
