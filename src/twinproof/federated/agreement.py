"""What all parties and the coordinator agree on before the first round: one plan, and who takes part with how many records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.federated.draw_cap import draw_cap
from twinproof.files import canonical_json
from twinproof.layers.models.with_noise import RedistributionKind
from twinproof.privacy.plan import Plan
from twinproof.recipes.config import ResolvedConfig, TrainConfig, parse_train_config
from twinproof.recipes.registry import all_recipes, find_recipe
from twinproof.recipes.resolve import plan_of, resolve
from twinproof.recipes.stored_data import public_config

_LONGEST_NAME = 64
# Where the data lie and how fast a machine is are each one's own business.
_OWN_BUSINESS = ("data", "performance")


@dataclass(frozen=True)
class DeclaredParty:
    """A party as everybody knows it. ``records`` is public: the most records that it has, declared as a pooled run's are."""

    name: str
    records: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"name": self.name, "records": self.records}


@dataclass(frozen=True)
class Agreement:
    """Resolved settings and the parties, in the order in which their sums are added up.

    Guarantees
        The plan is the pooled run's of the same settings and as many records: rate, clipping norm, noise, divisor and steps
        depend on no party, and neither does its epsilon.
    """

    config: ResolvedConfig
    parties: tuple[DeclaredParty, ...]

    @cached_property
    def plan(self) -> Plan:
        """How sums become private."""
        return plan_of(self.config)

    @cached_property
    def caps(self) -> dict[str, int]:
        """The most records of each party that count in one round."""
        return {party.name: draw_cap(party.records, self.plan.sample_rate) for party in self.parties}

    @cached_property
    def sha256(self) -> str:
        """Digest of all that must be the same for everybody."""
        settings = {name: value for name, value in public_config(self.config).items() if name not in _OWN_BUSINESS}
        agreed = {"settings": settings, "parties": [party.as_dict() for party in self.parties]}
        return hashlib.sha256(canonical_json(agreed).encode()).hexdigest()

    def declared(self, name: str) -> DeclaredParty:
        """The party of that name."""
        for party in self.parties:
            if party.name == name:
                return party
        raise ConfigError(
            "there is no such party",
            where="party",
            got=name,
            wanted=" or ".join(party.name for party in self.parties),
            fix="use a name of the agreement, or agree on the parties anew",
        )


def agree(settings: Mapping[str, Any] | TrainConfig, parties: Sequence[DeclaredParty], public: Dataset) -> Agreement:
    """The agreement that these settings make of these parties; everybody can work it out, and compare its digest.

    ``public`` gives what is known about the data: shape, classes, levels, scaling. Its training part is not looked at.
    """
    _check_parties(parties)
    config = (
        settings if isinstance(settings, TrainConfig) else parse_train_config({"data": {"source": public.name}, **settings})
    )
    total = sum(party.records for party in parties)
    if config.records not in (None, total):
        raise ConfigError(
            "the declared records are not those of the parties",
            where="records",
            got=config.records,
            wanted=f"{total}, the sum over the parties",
            fix="leave records out",
        )
    _check_settings(config, public)
    return Agreement(resolve(config.model_copy(update={"records": total}), public), tuple(parties))


def _check_parties(parties: Sequence[DeclaredParty]) -> None:
    names = [party.name for party in parties]
    if not names or len(set(names)) != len(names):
        got = ", ".join(names) or "nobody"
        raise ConfigError(
            "the parties cannot be told apart", where="parties", got=got, wanted="one or more, of different names"
        )
    for party in parties:
        if not (party.name.isprintable() and 0 < len(party.name.strip()) <= _LONGEST_NAME):
            wanted = f"1 to {_LONGEST_NAME} printable characters"
            raise ConfigError("the name of a party cannot be used", where="parties", got=repr(party.name), wanted=wanted)
        if party.records < 1:
            raise ConfigError("a party has no records", where=f"party {party.name}", got=party.records, wanted="1 or more")


def _check_settings(config: TrainConfig, public: Dataset) -> None:
    """Refuses what would need the records of all parties in one place, or noise that nobody adds."""
    if not find_recipe(config.recipe).counted(config.variant):
        raise ConfigError(
            "parties train together only under a plan",
            where="recipe",
            got=f"{config.recipe}, variant {config.variant}",
            wanted=" or ".join(recipe.name for recipe in all_recipes() if recipe.private),
        )
    if public.scaling is not None and public.scaling.spending is not None:
        raise ConfigError(
            "feature ranges cannot be estimated from records that lie apart",
            where="data.ranges",
            got="private",
            wanted="declared ranges, the same for all parties, or those of the public test set",
        )
    noise = config.noise_layer
    if noise is not None and (noise.redistribution is RedistributionKind.TRAINING or noise.public_data is not None):
        raise ConfigError(
            "the shares of the layer's noise cannot be computed from records that lie apart",
            where="noise_layer",
            got=f"redistribution {noise.redistribution}, public_data {noise.public_data}",
            wanted="redistribution uniform, random, learned, or public (from the test set)",
        )
