"""Types of JSON values: the edges, and what only looks right."""

from __future__ import annotations

from typing import Any

import pytest

from twinproof_verify import models
from twinproof_verify.models import Count, Near, Record, Text, differences, exact, number, read, rounded_down, rounded_up


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (models.Positive, (1e-300, 1), (0, -0.0, -1, True, "1", None, 10**400)),
        (models.NotNegative, (0, 0.0, 3), (-1e-300, False)),
        (models.Probability, (0, 1, 0.5), (-1e-9, 1.0000001, True)),
        (models.OpenProbability, (1e-9, 0.5), (0, 1, 0.0, 1.0)),
        (models.Rate, (1, 1e-9), (0, 1.1)),
        (models.Count, (0, 5), (-1, 1.0, True, 2**60, 10**400)),
        (models.PositiveCount, (1,), (0, 1.0, True)),
        (models.Format, (1, 2, 3), (0, 4, True, 1.0)),
        (models.Digest, ("0" * 64,), ("0" * 63, "A" * 64, "0" * 64 + "\n", 0, None)),
        (models.KeyText, ("00ff",), ("", "0", "0G", "00\n", 0)),
        (models.Text, ("a",), ("", None, 1)),
        (models.Grid, (1, 0.5, 2.0**-20, 2), (0, -0.5, 0.3, True, None)),
        (models.UtcTime, ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z"), ("2026-01-01T00:00:00", "Z", "\u0662Z", 5, "")),
    ],
)
def test_types(kind: Any, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    class Holder(Record):
        value: kind

    assert all(models.sound(Holder, {"value": value}) for value in good)
    assert not any(models.sound(Holder, {"value": value}) for value in (*bad, float("nan"), float("inf")))


def test_numbers_are_not_changed_on_the_way() -> None:
    assert (number(3), number(0.1), number(None), number(True), number(2**53 + 1)) == (3.0, 0.1, None, None, None)


class Sample(Record):
    a: Count
    b: Text
    c: list[Count] | None = None


def test_missing_wrong_and_unknown_keys_are_each_reported() -> None:
    found, problems = read(Sample, {"a": -1, "c": [0, True], "x\x1b": 0}, "f", "line 1: ")
    assert found is None
    assert [problem.what for problem in problems] == [
        "line 1: a has a value it cannot have",
        "line 1: b is missing",
        "line 1: c[1] has a value it cannot have",
        "line 1: there is an unknown key",
    ]
    assert problems[-1].got.isprintable()
    assert read(Sample, {"a": 1, "b": "x"}, "f") == (Sample(a=1, b="x"), [])


@pytest.mark.parametrize("value", [None, 3, "text", [], {"\ud800": 1}, {1: 2}, {"a": 1, "b": "\ud800", "c": [10**5000]}])
def test_what_is_no_record_ends_in_problems(value: object) -> None:
    found, problems = read(Sample, value, "f")
    assert found is None
    assert problems


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        (0.1 + 0.2, exact(0.3), True),
        (0.3001, exact(0.3), False),
        (0.123456, rounded_down(0.1234567), True),
        (0.123458, rounded_down(0.1234567), False),
        (0.123457, rounded_up(0.1234561), True),
        (True, Near(1.0, 0.0, 2.0), False),
        (True, 1, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({}, {"a": 1}, False),
        ([1, 2], [1], False),
        ("x", [1], False),
    ],
)
def test_differences(got: object, wanted: object, same: bool) -> None:
    assert (list(differences(got, wanted, "x")) == []) == same
