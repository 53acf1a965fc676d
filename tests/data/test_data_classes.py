from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twinproof.data.assemble import classes_of_test, to_indices
from twinproof.data.record import Records
from twinproof.errors import DataError


def labelled(*labels: Any) -> Records:
    return Records(np.zeros((len(labels), 1)), np.array(labels), "sample")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ((2, 0, 1, 0), ("0", "1", "2")),
        (("10", "9", "2"), ("2", "9", "10")),
        (("b", "a", "10"), ("10", "a", "b")),
        ((-1, 1), ("-1", "1")),
    ],
)
def test_classes_of_test_records(labels: tuple[Any, ...], classes: tuple[str, ...]) -> None:
    assert classes_of_test(labelled(*labels)) == classes


@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        (("dog", "cat"), ("cat", "dog"), [1, 0]),
        ((1, 0, 1), ("cat", "dog"), [1, 0, 1]),
        (("1", "cat"), ("cat", "dog"), [1, 0]),
        ((1, 2), ("1", "2"), [0, 1]),
        ((0, 1), ("1", "0"), [1, 0]),
    ],
)
def test_labels_become_numbers_of_their_classes(labels: tuple[Any, ...], classes: tuple[str, ...], indices: list[int]) -> None:
    found = to_indices(labelled(*labels), classes)
    assert found.dtype == np.int64
    assert found.tolist() == indices


@pytest.mark.parametrize(
    ("labels", "classes", "got"),
    [
        (("cat", "cow", "cow"), ("cat", "dog"), "'cow'"),
        ((0, 2), ("cat", "dog"), "2"),
        ((0, -1), ("cat", "dog"), "-1"),
        ((1, 0), ("1", "2"), "0"),
    ],
)
def test_a_label_outside_the_classes(labels: tuple[Any, ...], classes: tuple[str, ...], got: str) -> None:
    with pytest.raises(DataError, match="does not fit the classes") as caught:
        to_indices(labelled(*labels), classes)
    assert caught.value.got == got
    assert "record 1" in caught.value.where


def test_record_number_is_that_of_the_file() -> None:
    part = labelled("a", "b", "a", "c").take(np.array([False, False, True, True]))
    with pytest.raises(DataError, match="record 3"):
        to_indices(part, ("a", "b"))


def test_many_classes_are_shown_in_part() -> None:
    with pytest.raises(DataError, match=r"\(30 classes\)"):
        to_indices(labelled("x"), tuple(f"class {i}" for i in range(30)))
