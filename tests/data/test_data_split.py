"""The split must be a function of each record alone: the accountant's neighbours rest on it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from twinproof.data.assemble import belongs_to_test, split_by_content
from twinproof.data.record import Records
from twinproof.errors import DataError

Splitter = Callable[[Records, float], tuple[Records, Records]]


def records(count: int, seed: int = 0) -> Records:
    generator = np.random.default_rng(seed)
    return Records(generator.integers(0, 256, (count, 4), dtype=np.uint8), generator.integers(0, 3, count), "sample")


def without(whole: Records, index: int) -> Records:
    return Records(np.delete(whole.inputs, index, axis=0), np.delete(whole.labels, index), whole.where)


def rows(part: Records) -> list[bytes]:
    return [row.tobytes() + bytes([label]) for row, label in zip(part.inputs, part.labels.tolist(), strict=True)]


def is_stable(splitter: Splitter) -> bool:
    """Whether leaving out any one record leaves every other record on its side, in its order."""
    whole = records(60)
    sides = [rows(side) for side in splitter(whole, 0.3)]
    for index in range(len(whole)):
        gone = rows(whole)[index]
        left = [rows(side) for side in splitter(without(whole, index), 0.3)]
        expected = [[row for row in side if row != gone] for side in sides]
        if left != expected:
            return False
    return True


def permutation_split(whole: Records, fraction: float) -> tuple[Records, Records]:
    """The planted bug: a shuffled order decides, so one record more moves others across."""
    chosen = np.zeros(len(whole), dtype=np.bool_)
    chosen[np.random.default_rng(0).permutation(len(whole))[: int(fraction * len(whole))]] = True
    return whole.take(~chosen), whole.take(chosen)


def test_neighbours_differ_by_one_record_at_most() -> None:
    assert is_stable(split_by_content)


def test_planted_permutation_split_is_caught() -> None:
    assert not is_stable(permutation_split)


def test_every_record_is_on_one_side_in_file_order() -> None:
    whole = records(500)
    train, test = split_by_content(whole, 0.2)
    assert train.rows is not None
    assert test.rows is not None
    assert sorted([*train.rows, *test.rows]) == list(range(500))
    for part in (train, test):
        assert part.rows is not None
        np.testing.assert_array_equal(part.inputs, whole.inputs[part.rows])
        np.testing.assert_array_equal(part.labels, whole.labels[part.rows])
        assert part.row(2) == part.rows[2]


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_fraction(fraction: float) -> None:
    count = 20_000
    sides = [belongs_to_test(index.to_bytes(4, "little"), "a", fraction) for index in range(count)]
    six_deviations = 6 * (fraction * (1 - fraction) / count) ** 0.5
    assert abs(np.mean(sides) - fraction) < six_deviations


def test_duplicates_stay_together() -> None:
    plain = records(30)
    twice = Records(np.tile(plain.inputs, (2, 1)), np.tile(plain.labels, 2), "twice")
    train, test = split_by_content(twice, 0.4)
    assert not set(rows(train)) & set(rows(test))


def test_the_sign_of_zero_does_not_move_a_record() -> None:
    base = np.stack([np.zeros(40), np.arange(40.0)], axis=1)
    pairs = Records(np.concatenate([base, base * [-1.0, 1.0]]), np.zeros(80, dtype=np.int64), "zeros")
    train, test = split_by_content(pairs, 0.5)
    assert not set(train.inputs[:, 1]) & set(test.inputs[:, 1])


def test_the_label_belongs_to_the_record() -> None:
    pairs = Records(np.tile(np.arange(40), 2)[:, np.newaxis], np.repeat([0, 1], 40), "pairs")
    train, test = split_by_content(pairs, 0.5)
    assert set(train.inputs[:, 0]) & set(test.inputs[:, 0])


def test_label_and_bytes_cannot_run_together() -> None:
    sides = [(belongs_to_test(b"1" + bytes([i]), "a", 0.5), belongs_to_test(bytes([i]), "a1", 0.5)) for i in range(64)]
    assert any(one != other for one, other in sides)


def test_larger_fraction_keeps_test_records() -> None:
    whole = records(200)
    small, large = (set(rows(split_by_content(whole, fraction)[1])) for fraction in (0.1, 0.4))
    assert small < large


def test_a_side_without_records() -> None:
    with pytest.raises(DataError, match="one side without records"):
        split_by_content(records(3), 1e-9)
