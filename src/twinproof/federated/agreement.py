"""What all parties and the coordinator agree on before the first round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

import numpy as np
from scipy.stats import binom

from twinproof.data.record import Dataset, Split
from twinproof.errors import ConfigError, RunError
from twinproof.files import canonical_json
from twinproof.layers.noise_placement import RedistributionKind
from twinproof.privacy.plan import Plan
from twinproof.recipes.config import ResolvedConfig, TrainConfig, parse_train_config, public_config
from twinproof.recipes.registry import all_recipes
from twinproof.recipes.resolve import plan_of, resolve
from twinproof.runs.layout import read_run_json


def check_timeout(seconds: float | None) -> None:
    """Refuses a number of seconds that cannot be waited for; None is as long as it takes."""
    if seconds is not None and not 0 < seconds <= TIMEOUT_MAX:  # not a number is in no range
        raise ConfigError(
            "a party cannot be given this time for a round",
            where="timeout",
            got=seconds,
            wanted=f"a number of seconds above 0, at most {TIMEOUT_MAX:.0f}",
            fix="leave it out for the usual time",
        )


# How often an honest draw lies above the cap. Privacy does not rest on it: the party itself brings such a sum down.
_RARE = 1e-12


def draw_cap(records: int, sample_rate: float) -> int:
    """The binomial quantile of ``records`` draws at ``sample_rate``: at least 1, and never above ``records``.

    It is what a party can move the model by, in clipping norms, since the coordinator refuses longer sums.
    """
    return min(records, max(1, int(binom.isf(_RARE, records, sample_rate))))


_SHUFFLE = 20_200  # public: who gets which record of a public data set is no secret


def unequal_shares(records: Split, parties: int) -> dict[str, Split]:
    """The records shared out at random to ``party-1``, ``party-2``..., the k-th of whom gets k times as many as the first.

    For trials on one machine: real parties have their records already, and sharing out is not private.
    """
    if parties < 1 or parties * (parties + 1) // 2 > len(records):
        wanted = "1 or more, and few enough that each gets a record"
        raise ConfigError("this many parties cannot share the records", where="parties", got=parties, wanted=wanted)
    order = np.random.default_rng(_SHUFFLE).permutation(len(records))
    weights = np.arange(1, parties + 1)
    ends = np.cumsum(weights)[:-1] * len(records) // int(weights.sum())
    return {
        f"party-{number}": Split(records.inputs[rows], records.labels[rows])
        for number, rows in enumerate(np.split(order, ends), start=1)
    }


def public_part(dataset: Dataset) -> Dataset:
    """The data set with its public test records in the place of its training records, which the coordinator must not see."""
    return replace(dataset, train=dataset.test)


_LONGEST_NAME = 64
# Where the data lie and how fast a machine is may differ between parties.
_MAY_DIFFER = ("data", "performance")


@dataclass(frozen=True)
class DeclaredParty:
    """A party as everybody knows it. ``records`` is public: the most records that it has, declared as a pooled run's are."""

    name: str
    records: int


@dataclass(frozen=True)
class Agreement:
    """Resolved settings and the parties, in the order in which their sums are added up.

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
        settings = {name: value for name, value in public_config(self.config).items() if name not in _MAY_DIFFER}
        agreed = {"settings": settings, "parties": [asdict(party) for party in self.parties]}
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
            fix="use a name of the agreement, or make a new agreement",
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
            "the names of the parties are not unique", where="parties", got=got, wanted="one or more, of different names"
        )
    for party in parties:
        if not (party.name.isprintable() and 0 < len(party.name.strip()) <= _LONGEST_NAME):
            wanted = f"1 to {_LONGEST_NAME} printable characters"
            raise ConfigError("the name of a party cannot be used", where="parties", got=repr(party.name), wanted=wanted)
        if party.records < 1:
            raise ConfigError("a party has no records", where=f"party {party.name}", got=party.records, wanted="1 or more")


def _check_settings(config: TrainConfig, public: Dataset) -> None:
    """Refuses what would need the records of all parties in one place, or noise that no party adds."""
    if not config.counted:
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


SECTION = "federation"
ASSUMPTIONS = (
    "The coordinator is trusted: it sees the clipped sum of every party in every round, adds the noise and keeps the key; "
    "there is no secure aggregation.",
    "Every party follows the plan for its own records: what a party reveals about them by itself, nobody else's noise covers.",
    "Each party has a secret key of its own; the names of the parties and the declared numbers of their records are public.",
    "A record is held by one party; one that two parties hold counts as two records of one person.",
    "Whether a party answers in time does not depend on any one record.",
)


def describe(agreement: Agreement) -> dict[str, Any]:
    """The section ``federation``: public names and declared sizes, and the digest of the agreement."""
    return {"agreement_sha256": agreement.sha256, "parties": [asdict(party) for party in agreement.parties]}


def refuse_other_agreement(root: Path, agreement: Agreement) -> None:
    """Refuses to resume a run that has other settings or parties, or that was not federated at all."""
    stored = read_run_json(root).get(SECTION)
    if stored != describe(agreement):
        raise RunError(
            "this is not the agreement that the run was started with",
            where=str(root),
            got=f"agreement {agreement.sha256[:12]}",
            wanted="no federated run" if stored is None else f"agreement {stored.get('agreement_sha256', '')[:12]}",
            fix="resume with the same settings and parties, or start a new run",
        )
