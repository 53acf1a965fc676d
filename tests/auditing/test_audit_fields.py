"""Predicates on JSON values: the edges, and the types that only look right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twinproof.auditing import fields
from twinproof.auditing.fields import Field, exactly, field_problems, number, or_null, whole


@pytest.mark.parametrize(
    ("accepts", "good", "bad"),
    [
        (fields.is_number, (0, -1.5, 2**53), (True, None, "1", float("nan"), float("inf"), 10**400, [], {})),
        (fields.is_positive, (1e-300, 1), (0, -0.0, -1, True, float("nan"))),
        (fields.is_not_negative, (0, 0.0, 3), (-1e-300, float("inf"), False)),
        (fields.is_probability, (0, 1, 0.5), (-1e-9, 1.0000001, True)),
        (fields.is_open_probability, (1e-9, 0.5), (0, 1, 0.0, 1.0)),
        (fields.is_rate, (1, 1e-9), (0, 1.1)),
        (fields.is_count, (0, 5), (-1, 1.0, True, 2**60)),
        (fields.is_positive_count, (1,), (0, 1.0, True)),
        (fields.is_digest, ("0" * 64,), ("0" * 63, "A" * 64, "0" * 64 + "\n", 0, None)),
        (fields.is_text, ("a",), ("", None, 1)),
        (fields.is_texts, ([], ["a"]), (["a", 1], "a", None)),
        (fields.is_text_map, ({}, {"a": "b"}), ({"a": 1}, [], None)),
        (fields.is_utc_time, ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z"), ("2026-01-01T00:00:00", "Z", "٢Z", 5, "")),
        (or_null(fields.is_count), (None, 1), ("",)),
        (exactly(1), (1,), (1.0, True, "1", 2)),
    ],
)
def test_predicates(accepts: Callable[[object], bool], good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    assert all(accepts(value) for value in good)
    assert not any(accepts(value) for value in bad)


def test_numbers_are_not_changed_on_the_way() -> None:
    assert (number(3), number(0.1), number(None)) == (3.0, 0.1, None)
    assert (whole(3), whole(3.0), whole(2**53 + 1)) == (3, None, None)


def test_missing_wrong_and_unknown_keys_are_each_reported() -> None:
    table = (Field("a", fields.is_count, "a count"), Field("b", fields.is_text, "a text"))
    found = list(field_problems("f", {"a": -1, "c": 0}, table, where="line 1: ", closed=True))
    assert [problem.what for problem in found] == [
        "line 1: a has a value it cannot have",
        "line 1: b is missing",
        "line 1: there is an unknown key",
    ]
    assert len(list(field_problems("f", {"a": 1, "b": "x", "c": 0}, table))) == 0
