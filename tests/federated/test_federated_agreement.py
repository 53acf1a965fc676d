"""The agreement: the pooled run's plan, the parties by name, and what cannot be agreed on."""

from __future__ import annotations

import math
from dataclasses import replace
from threading import TIMEOUT_MAX, Event
from typing import Any

import pytest
from federations import NAMES, agreed, digits, public, settings, shares

from twinproof.data.record import RangeSpending, Scaling
from twinproof.errors import ConfigError
from twinproof.federated.agreement import DeclaredParty, agree, check_timeout, draw_cap, unequal_shares
from twinproof.federated.local import LocalParties
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.resolve import plan_of, resolve

DECLARED = [DeclaredParty(name, len(share)) for name, share in shares().items()]


def test_the_plan_is_the_pooled_runs() -> None:
    pooled = resolve(parse_train_config({"data": {"source": "digits"}, **settings()}), digits())
    found = agreed()
    assert found.plan == plan_of(pooled)
    assert found.config.records == len(digits().train)


def test_a_target_epsilon_gives_the_pooled_runs_noise() -> None:
    wanted = settings(noise_multiplier=None, epsilon=0.3)
    pooled = resolve(parse_train_config({"data": {"source": "digits"}, **wanted}), digits())
    assert agree(wanted, DECLARED, public()).plan == plan_of(pooled)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"clip_norm": 0.2}, False),
        ({"noise_multiplier": 10.0}, False),
        ({"steps": 7}, False),
        ({"recipe": "dpcert-gaussian"}, False),
        ({"performance": {"device": "cpu", "physical_batch": 16}}, True),
    ],
)
def test_the_digest_covers_all_but_each_ones_own_business(changes: dict[str, Any], same: bool) -> None:
    assert (agreed(**changes).sha256 == agreed().sha256) is same


def test_the_digest_covers_the_parties() -> None:
    other = [DeclaredParty("party-1", DECLARED[0].records + 1), *DECLARED[1:3], DeclaredParty("x", DECLARED[3].records - 1)]
    assert agree(settings(), other, public()).sha256 != agreed().sha256


@pytest.mark.parametrize(
    ("parties", "changes", "message"),
    [
        ([], {}, "are not unique"),
        ([DeclaredParty("a", 500), DeclaredParty("a", 500)], {}, "are not unique"),
        ([DeclaredParty("", 500)], {}, "name of a party"),
        ([DeclaredParty("\x1b[31m", 500)], {}, "name of a party"),
        ([DeclaredParty("a" * 65, 500)], {}, "name of a party"),
        ([DeclaredParty("a", 0), DeclaredParty("b", 500)], {}, "no records"),
        (DECLARED, {"records": 12}, "not those of the parties"),
        (DECLARED, {"recipe": "regular", "noise_multiplier": None}, "only under a plan"),
        (DECLARED, {"recipe": "pixeldp"}, "only under a plan"),
        (DECLARED, {"recipe": "stobatch", "variant": "published", "model": None}, "only under a plan"),
        (DECLARED, {"recipe": "securesgd", "noise_layer": {"redistribution": "training"}}, "shares of the layer's noise"),
        (
            DECLARED,
            {"recipe": "securesgd", "noise_layer": {"redistribution": "public", "public_data": "mnist"}},
            "shares of the layer's noise",
        ),
    ],
)
def test_what_cannot_be_agreed_on(parties: list[DeclaredParty], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agree(settings(**changes), parties, public())


def test_ranges_that_were_estimated_from_records_are_refused() -> None:
    paid = Scaling((0.0,), (1.0,), "private", RangeSpending(20.0))
    with pytest.raises(ConfigError, match="feature ranges"):
        agree(settings(), DECLARED, replace(public(), scaling=paid))


def test_an_unknown_party_is_named() -> None:
    with pytest.raises(ConfigError, match="no such party"):
        agreed().declared("nobody")


@pytest.mark.parametrize(("records", "rate"), [(1, 0.01), (1, 1.0), (50, 1.0), (139, 0.18), (100_000, 0.004)])
def test_a_cap_is_seldom_reached_and_never_above_the_records(records: int, rate: float) -> None:
    from scipy.stats import binom

    cap = draw_cap(records, rate)
    assert 1 <= cap <= records
    assert binom.sf(cap, records, rate) <= 1e-12
    if 1 < cap < records:
        assert binom.sf(cap - 1, records, rate) > 1e-12


def test_shares_are_unequal_and_hold_every_record_once() -> None:
    dealt, train = shares(), digits().train
    assert tuple(dealt) == NAMES
    assert len({len(share) for share in dealt.values()}) == 4
    rows = sorted(
        row.tobytes() + bytes([label])
        for share in dealt.values()
        for row, label in zip(share.inputs, share.labels, strict=True)
    )
    assert rows == sorted(row.tobytes() + bytes([label]) for row, label in zip(train.inputs, train.labels, strict=True))


@pytest.mark.parametrize("parties", [2000, 0, -1, -3])
def test_more_parties_than_records_and_fewer_than_one_are_refused(parties: int) -> None:
    with pytest.raises(ConfigError, match="cannot share"):
        unequal_shares(digits().train, parties)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_no_clock_waits_so_long(seconds: float) -> None:
    with pytest.raises(ConfigError, match="this time for a round"):
        check_timeout(seconds)
    with pytest.raises(ConfigError, match="this time for a round"):
        LocalParties({}, timeout=seconds)


@pytest.mark.parametrize("seconds", [None, 0.001, 600.0, TIMEOUT_MAX])
def test_others_are_waited_for(seconds: float | None) -> None:
    check_timeout(seconds)
    done = Event()
    done.set()
    assert done.wait(seconds)
