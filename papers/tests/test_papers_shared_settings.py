"""What records share is said once, and everything is there again afterwards."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from twinproof_papers.results_file import Record, common, merged, without

VALUES: tuple[Any, ...] = (None, True, 1, 1.0, 0, False, "a", [1, 2], [], {}, {"deep": 1}, {"deep": 2, "deeper": {}})


def _some(generator: random.Random, depth: int = 2) -> Record:
    names = generator.sample("abcde", generator.randint(0, 4))
    return {
        name: _some(generator, depth - 1) if depth and generator.random() < 0.4 else generator.choice(VALUES) for name in names
    }


def _exact(record: Record) -> str:
    """Where 1, 1.0 and True differ."""
    return json.dumps(record, sort_keys=True)


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost(seed: int) -> None:
    generator = random.Random(seed)
    base = _some(generator)
    records = [{**base, **_some(generator)} for _ in range(generator.randint(1, 5))]
    shared = common(records)
    assert [_exact(merged(shared, without(record, shared))) for record in records] == [_exact(record) for record in records]


@pytest.mark.parametrize(
    ("records", "shared"),
    [
        ([], {}),
        ([{"a": 1}], {"a": 1}),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], {"a": 1}),
        ([{"a": 1}, {"a": 1, "b": 3}], {"a": 1}),
        ([{"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}}], {"a": {"x": 1}}),
        ([{"a": {"x": 1}}, {"a": None}], {}),
        ([{"a": 1}, {"a": True}], {}),
        ([{"a": 1}, {"a": 1.0}], {}),
    ],
)
def test_only_what_all_have_is_shared(records: list[Record], shared: Record) -> None:
    assert _exact(common(records)) == _exact(shared)


def test_planted_equality_across_kinds_is_caught() -> None:
    """1 == True: taken for the same, a record would come back with the other's kind."""
    records: list[Record] = [{"a": 1}, {"a": True}]
    planted: Record = {key: value for key, value in records[0].items() if records[1][key] == value}
    assert _exact(merged(planted, without(records[1], planted))) != _exact(records[1])
