"""The data set's record: settings, checks, classes, the split by content, and the keyed fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from twinproof.data.assemble import belongs_to_test, classes_of_test, split_by_content, to_indices
from twinproof.data.record import (
    DataConfig,
    Dataset,
    InputKind,
    RangeSpending,
    Records,
    Scaling,
    Split,
    fingerprint,
    parse_data_config,
    refuse_settings,
)
from twinproof.errors import ConfigError, DataError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "key", "wanted"),
    [
        ({}, "source", "required"),
        ({"source": ""}, "source", "1 character"),
        ({"source": "a", "public_fraction": 0}, "public_fraction", "greater than 0"),
        ({"source": "a", "public_fraction": 1.0}, "public_fraction", "less than 1"),
        ({"source": "a", "test_fraction": 0.2}, "test_fraction", "its new name: public_fraction"),
        ({"source": "a", "classes": ["only"]}, "classes", "two or more"),
        ({"source": "a", "classes": ["b", "b"]}, "classes", "different"),
        ({"source": "a", "ranges": "train"}, "ranges", "'test', 'private'"),
        ({"source": "a", "ranges": {"age": [3, 3]}}, "ranges", "low below high for feature 'age'"),
        ({"source": "a", "ranges": {"age": [0, INF]}}, "ranges", "finite"),
        ({"source": "a", "ranges": {"age": [0, NAN]}}, "ranges", "finite"),
        ({"source": "a", "ranges": {"age": [-1e308, 1e308]}}, "ranges", "finite"),
        ({"source": "a", "ranges": {"age": ["0", "1"]}}, "ranges", "two finite numbers"),
        ({"source": "a", "ranges": {"age": [1]}}, "ranges", "two finite numbers"),
        ({"source": "a", "ranges": {1: [0, 1]}}, "ranges", "as text"),
        ({"source": "a", "ranges_noise": 0}, "ranges_noise", "greater than 0"),
        ({"source": "a", "ranges_noise": INF}, "ranges_noise", "finite"),
        ({"source": "a", "labels": "b"}, "labels", "did you mean 'label'?"),
        ({"source": "a", "public_fraction": 7, "ranges": 5, "speed": 1}, "public_fraction, ranges, speed", "ranges: "),
    ],
)
def test_settings_that_cannot_be_used_are_named_together(values: dict[str, Any], key: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_data_config(values)
    assert caught.value.where == key
    assert wanted in caught.value.wanted


def test_settings_have_defaults_and_do_not_pass_silently() -> None:
    config = parse_data_config({"source": "table.csv", "ranges": {"age": [0, 120]}, "classes": ["no", "yes"]})
    assert config == DataConfig(source="table.csv", ranges={"age": (0.0, 120.0)}, classes=("no", "yes"))
    assert (config.test, config.public_fraction, config.label, config.ranges_noise) == (None, None, None, 20.0)
    with pytest.raises(ConfigError, match="does not apply") as caught:
        refuse_settings(DataConfig(source="mnist", test="t", label="y"), ("test", "label", "classes"), "a set of its own")
    assert caught.value.where == "test, label"


def split(inputs: Any, labels: Any) -> Split:
    return Split(np.asarray(inputs), np.asarray(labels, dtype=np.int64))


def dataset(**changes: Any) -> Dataset:
    part = split(np.zeros((4, 3), dtype=np.uint8), [0, 1, 0, 1])
    values: dict[str, Any] = {
        "name": "n",
        "kind": InputKind.FEATURES,
        "train": part,
        "test": part,
        "classes": ("a", "b"),
        "levels": 9,
    }
    return Dataset(**(values | changes))


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


def test_the_public_description_is_the_same_for_any_training_records() -> None:
    """A class without a training record too: a run would prove by its existence that somebody with a rare class took part."""
    others = [split(np.full((6, 3), 7, dtype=np.uint8), [0, 1, 1, 1, 1, 1]), split(GOOD, [0, 0])]
    assert all(dataset(train=other).public_description() == dataset().public_description() for other in others)


@pytest.mark.parametrize(
    ("scaling", "match"),
    [
        (((0.0,), (0.0,), "declared"), "no usable bounds"),
        (((0.0,), (NAN,), "declared"), "no usable bounds"),
        (((-1e308,), (1e308,), "declared"), "no usable bounds"),
        (((0.0,), (1.0, 2.0), "declared"), "contradicts itself"),
        (((0.0,), (1.0,), "train"), "source cannot be used"),
        (((0.0,), (1.0,), "private"), "contradicts itself"),
        (((0.0,), (1.0,), "declared", RangeSpending(3.0)), "contradicts itself"),
    ],
)
def test_bounds_that_cannot_be_used(scaling: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Scaling(*scaling)


def test_a_scaling_is_read_back_from_its_record() -> None:
    for scaling in (Scaling((0.1,), (0.7,), "test"), Scaling((-1.0,), (2.0,), "private", RangeSpending(5.0))):
        assert Scaling.from_dict(scaling.as_dict()) == scaling
    broken: list[dict[str, Any]] = [{}, {"low": 1, "high": 2, "source": "test"}, {"low": ["a"], "high": [1], "source": "test"}]
    for record in broken:
        with pytest.raises(ConfigError, match="broken"):
            Scaling.from_dict(record)


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
    ("labels", "classes", "wanted"),
    [
        (("dog", "cat"), ("cat", "dog"), [1, 0]),
        ((1, 0, 1), ("cat", "dog"), [1, 0, 1]),
        (("1", "cat"), ("cat", "dog"), [1, 0]),
        ((1, 2), ("1", "2"), [0, 1]),
        ((0, 1), ("1", "0"), [1, 0]),
        (("cat", "cow", "cow"), ("cat", "dog"), "'cow'"),
        ((0, 2), ("cat", "dog"), "2"),
        ((0, -1), ("cat", "dog"), "-1"),
        ((1, 0), ("1", "2"), "0"),
    ],
)
def test_labels_become_numbers_of_their_classes(labels: tuple[Any, ...], classes: tuple[str, ...], wanted: Any) -> None:
    if isinstance(wanted, list):
        found = to_indices(labelled(*labels), classes)
        assert found.dtype == np.int64
        assert found.tolist() == wanted
        return
    with pytest.raises(DataError, match="does not fit the classes") as caught:
        to_indices(labelled(*labels), classes)
    assert caught.value.got == wanted
    assert "record 1" in caught.value.where


def test_errors_count_records_as_the_file_does_and_list_some_classes() -> None:
    part = labelled("a", "b", "a", "c").take(np.array([False, False, True, True]))
    with pytest.raises(DataError, match="record 3"):
        to_indices(part, ("a", "b"))
    with pytest.raises(DataError, match=r"\(30 classes\)"):
        to_indices(labelled("x"), tuple(f"class {i}" for i in range(30)))


Splitter = Callable[[Records, float], tuple[Records, Records]]


def random_records(count: int) -> Records:
    generator = np.random.default_rng(0)
    return Records(generator.integers(0, 256, (count, 4), dtype=np.uint8), generator.integers(0, 3, count), "sample")


def rows(part: Records) -> list[bytes]:
    return [row.tobytes() + bytes([label]) for row, label in zip(part.inputs, part.labels.tolist(), strict=True)]


def is_stable(splitter: Splitter) -> bool:
    """Whether leaving out any one record leaves every other record on its side, in its order."""
    whole = random_records(60)
    sides = [rows(side) for side in splitter(whole, 0.3)]
    for index in range(len(whole)):
        without = Records(np.delete(whole.inputs, index, axis=0), np.delete(whole.labels, index), whole.where)
        left = [rows(side) for side in splitter(without, 0.3)]
        if left != [[row for row in side if row != rows(whole)[index]] for side in sides]:
            return False
    return True


def permutation_split(whole: Records, fraction: float) -> tuple[Records, Records]:
    """The planted bug: a shuffled order decides, so one record more moves others across."""
    chosen = np.zeros(len(whole), dtype=np.bool_)
    chosen[np.random.default_rng(0).permutation(len(whole))[: int(fraction * len(whole))]] = True
    return whole.take(~chosen), whole.take(chosen)


def test_a_record_more_moves_no_other_record_across_the_split() -> None:
    assert is_stable(split_by_content)
    assert not is_stable(permutation_split)


def test_every_record_is_on_one_side_in_file_order() -> None:
    whole = random_records(500)
    parts = split_by_content(whole, 0.2)
    positions = [part.rows for part in parts if part.rows is not None]
    assert sorted(np.concatenate(positions).tolist()) == list(range(500))
    for part, position in zip(parts, positions, strict=True):
        np.testing.assert_array_equal(part.inputs, whole.inputs[position])
        np.testing.assert_array_equal(part.labels, whole.labels[position])
        assert part.row(2) == position[2]
    small, large = (set(rows(split_by_content(whole, fraction)[1])) for fraction in (0.1, 0.4))
    assert small < large, "a larger fraction keeps the test records of a smaller one"
    with pytest.raises(DataError, match="one side without records"):
        split_by_content(random_records(3), 1e-9)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_the_test_part_has_its_fraction(fraction: float) -> None:
    sides = [belongs_to_test(index.to_bytes(4, "little"), "a", fraction) for index in range(20_000)]
    assert abs(np.mean(sides) - fraction) < 6 * (fraction * (1 - fraction) / 20_000) ** 0.5


def test_equal_records_stay_together_and_the_label_belongs_to_the_record() -> None:
    plain = random_records(30)
    train, test = split_by_content(Records(np.tile(plain.inputs, (2, 1)), np.tile(plain.labels, 2), "twice"), 0.4)
    assert not set(rows(train)) & set(rows(test))
    base = np.stack([np.zeros(40), np.arange(40.0)], axis=1)
    signs = Records(np.concatenate([base, base * [-1.0, 1.0]]), np.zeros(80, dtype=np.int64), "0.0 and -0.0")
    train, test = split_by_content(signs, 0.5)
    assert not set(train.inputs[:, 1]) & set(test.inputs[:, 1])
    train, test = split_by_content(Records(np.tile(np.arange(40), 2)[:, np.newaxis], np.repeat([0, 1], 40), "pairs"), 0.5)
    assert set(train.inputs[:, 0]) & set(test.inputs[:, 0])
    sides = [(belongs_to_test(b"1" + bytes([i]), "a", 0.5), belongs_to_test(bytes([i]), "a1", 0.5)) for i in range(64)]
    assert any(one != other for one, other in sides), "label and bytes cannot be confused"


KEY = bytes(range(32))


def stored(inputs: Any, labels: Any, kind: Any = np.uint8) -> Split:
    return Split(np.array(inputs, dtype=kind), np.array(labels, dtype=np.int64))


BASE = stored([[1, 2], [3, 4]], [0, 1])


@pytest.mark.parametrize(
    "other",
    [
        stored([[1, 2], [3, 5]], [0, 1]),
        stored([[1, 2], [3, 4]], [1, 1]),
        stored([[3, 4], [1, 2]], [1, 0]),
        stored([[1, 2, 3, 4]], [0, 1]),
        stored([[[1], [2]], [[3], [4]]], [0, 1]),
        stored([[1, 2], [3, 4]], [0, 1], np.uint16),
        stored([[1, 2]], [0]),
    ],
)
def test_any_difference_changes_the_fingerprint(other: Split) -> None:
    assert fingerprint(BASE, KEY) != fingerprint(other, KEY)


def test_the_fingerprint_depends_on_the_key_and_not_on_memory_layout() -> None:
    strided = Split(stored([[1, 9, 2, 9], [3, 9, 4, 9]], [0, 1]).inputs[:, ::2], BASE.labels)
    assert fingerprint(BASE, KEY) == fingerprint(strided, KEY)
    big, little = (stored([[1, 2], [3, 4]], [0, 1], kind) for kind in (">u2", "<u2"))
    assert fingerprint(big, KEY) == fingerprint(little, KEY)
    assert fingerprint(BASE, KEY) != fingerprint(BASE, KEY[::-1])
    with pytest.raises(ValueError, match="16 bytes"):
        fingerprint(BASE, b"")
