from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twinproof.data.record import Split, fingerprint

KEY = bytes(range(32))


def make(inputs: Any, labels: Any, kind: Any = np.uint8) -> Split:
    return Split(np.array(inputs, dtype=kind), np.array(labels, dtype=np.int64))


BASE = make([[1, 2], [3, 4]], [0, 1])


def test_repeatable_and_independent_of_memory_layout() -> None:
    wide = make([[1, 9, 2, 9], [3, 9, 4, 9]], [0, 1])
    strided = Split(wide.inputs[:, ::2], BASE.labels)
    assert fingerprint(BASE, KEY) == fingerprint(strided, KEY)
    big_endian = make([[1, 2], [3, 4]], [0, 1], ">u2")
    assert fingerprint(big_endian, KEY) == fingerprint(make([[1, 2], [3, 4]], [0, 1], "<u2"), KEY)


@pytest.mark.parametrize(
    "other",
    [
        make([[1, 2], [3, 5]], [0, 1]),
        make([[1, 2], [3, 4]], [1, 1]),
        make([[3, 4], [1, 2]], [1, 0]),
        make([[1, 2, 3, 4]], [0, 1]),
        make([[[1], [2]], [[3], [4]]], [0, 1]),
        make([[1, 2], [3, 4]], [0, 1], np.uint16),
        make([[1, 2]], [0]),
    ],
)
def test_any_difference_changes_it(other: Split) -> None:
    assert fingerprint(BASE, KEY) != fingerprint(other, KEY)


def test_the_key_matters() -> None:
    assert fingerprint(BASE, KEY) != fingerprint(BASE, KEY[::-1])
    with pytest.raises(ValueError, match="16 bytes"):
        fingerprint(BASE, b"")
