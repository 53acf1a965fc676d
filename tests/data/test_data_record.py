from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twinproof.data.record import Dataset, InputKind, RangeSpending, Scaling, Split
from twinproof.errors import ConfigError, DataError


def dataset(**changes: Any) -> Dataset:
    split = Split(np.zeros((4, 3), dtype=np.uint8), np.array([0, 1, 0, 1], dtype=np.int64))
    values: dict[str, Any] = {
        "name": "n",
        "kind": InputKind.FEATURES,
        "train": split,
        "test": split,
        "classes": ("a", "b"),
        "levels": 9,
    }
    return Dataset(**(values | changes))


def split(inputs: Any, labels: Any) -> Split:
    return Split(np.asarray(inputs), np.asarray(labels, dtype=np.int64))


GOOD = np.zeros((2, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train": split(GOOD.astype(np.float32), [0, 1])}, "not stored as levels"),
        ({"train": split(GOOD[:0], [])}, "no records"),
        ({"train": split(GOOD, [0, 1, 1])}, "number of inputs and labels"),
        ({"train": split(GOOD + 10, [0, 1])}, "above the largest level"),
        ({"train": split(GOOD, [0, 2])}, "does not fit the classes"),
        ({"train": split(GOOD, [-1, 0])}, "does not fit the classes"),
        ({"test": split(GOOD, [0, 0])}, "no record of class 'b'"),
        ({"test": split(GOOD[:, :2], [0, 1])}, "differ in shape"),
        ({"classes": ("a",)}, "cannot be told apart"),
        ({"classes": ("a", "a")}, "cannot be told apart"),
    ],
)
def test_a_data_set_that_does_not_fit_together(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        dataset(**changes)


def test_a_class_without_a_training_record_is_nobodys_business() -> None:
    """Otherwise a run would prove, by being there, that somebody with a rare class took part."""
    rare = dataset(train=split(GOOD, [0, 0]))
    assert rare.public_description() == dataset().public_description()


def test_public_description_is_the_same_for_any_training_records() -> None:
    other = split(np.full((6, 3), 7, dtype=np.uint8), [0, 1, 1, 1, 1, 1])
    assert dataset().public_description() == dataset(train=other).public_description()


@pytest.mark.parametrize(
    ("low", "high", "source", "spending", "match"),
    [
        ((0.0,), (0.0,), "declared", None, "no usable bounds"),
        ((0.0,), (float("nan"),), "declared", None, "no usable bounds"),
        ((-1e308,), (1e308,), "declared", None, "no usable bounds"),
        ((0.0,), (1.0, 2.0), "declared", None, "in pairs"),
        ((0.0,), (1.0,), "train", None, "unknown source"),
        ((0.0,), (1.0,), "private", None, "disagree"),
        ((0.0,), (1.0,), "declared", RangeSpending(3.0), "disagree"),
    ],
)
def test_bounds_that_cannot_be_used(low: Any, high: Any, source: str, spending: RangeSpending | None, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Scaling(low, high, source, spending)


@pytest.mark.parametrize("scaling", [Scaling((0.1,), (0.7,), "test"), Scaling((-1.0,), (2.0,), "private", RangeSpending(5.0))])
def test_scaling_survives_its_record(scaling: Scaling) -> None:
    assert Scaling.from_dict(scaling.as_dict()) == scaling


@pytest.mark.parametrize("record", [{}, {"low": 1, "high": 2, "source": "test"}, {"low": ["a"], "high": [1], "source": "test"}])
def test_broken_record_of_a_scaling(record: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="broken"):
        Scaling.from_dict(record)
