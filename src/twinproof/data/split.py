"""Setting test records aside where the data has no test part of its own."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from twinproof.data.parts import Records
from twinproof.errors import DataError

_SALT = b"twinproof split 1"


def belongs_to_test(stored: bytes, label: str, fraction: float) -> bool:
    """Whether the record with these stored bytes and this label is a test record: its digest lies below the fraction."""
    name = label.encode()
    digest = hashlib.sha256(_SALT + len(name).to_bytes(8, "little") + name + stored).digest()
    return int.from_bytes(digest[:8], "big") < int(fraction * 2.0**64)


def split_by_content(records: Records, fraction: float) -> tuple[Records, Records]:
    """Training and test records, each in the order of the file.

    Guarantees
        The side of a record is a function of that record and ``fraction`` alone. So adding or removing one record changes
        the training set by that record or not at all, which is what "neighbouring data sets" means to the accountant; a
        split by a shuffled order would move other records across. Equal records stay on one side, so that no test record
        was trained on.
    """
    chosen = _test_rows(records, fraction)
    train, test = records.take(~chosen), records.take(chosen)
    if len(train) == 0 or len(test) == 0:
        raise DataError(
            "the split leaves one side without records",
            where=records.where,
            got=f"{len(records)} records, public_fraction {fraction}",
            wanted="records for training and for testing",
            fix="give more records, another public_fraction, or a separate test part",
        )
    return train, test


def _test_rows(records: Records, fraction: float) -> NDArray[np.bool_]:
    inputs = records.inputs
    if inputs.dtype.kind == "f":
        inputs = inputs + 0.0  # -0.0 and 0.0 are the same number and must be the same record
    inputs = np.ascontiguousarray(inputs, dtype=inputs.dtype.newbyteorder("<"))
    sides = [
        belongs_to_test(row.tobytes(), str(label), fraction) for row, label in zip(inputs, records.labels.tolist(), strict=True)
    ]
    return np.array(sides, dtype=np.bool_)
