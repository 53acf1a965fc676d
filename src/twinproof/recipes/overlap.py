"""Whether records that count as public are training records."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np

from twinproof.data.record import Dataset, Split
from twinproof.errors import DataError

# A few equal inputs are chance (blank pictures, coarse features); a tenth of a set is a copy, a part or a superset of it.
_CHANCE = 0.1


class OverlapWarning(UserWarning):
    """Test records, which are public, have the same input as training records."""


def check_test_part(dataset: Dataset) -> None:
    """Refuses a test part that is the training part, and warns where single records lie in both; a known set passes.

    The number in the warning depends on the training records: it is said to the owner and written nowhere.
    """
    if dataset.public:
        return
    ours, theirs = Counter(_inputs(dataset.train)), Counter(_inputs(dataset.test))
    if ours == theirs:  # as often each: the few different inputs of a coarse table may well be the same on both sides
        raise DataError(
            "the test records are the training records",
            where="data.test",
            got=f"{dataset.name}: the same {len(dataset.test)} inputs for training and for testing",
            wanted="other records: the test records are public, the training records are not",
            fix="name other test records, or leave out `test` and set public_fraction",
        )
    shared = sum(count for row, count in theirs.items() if row in ours)
    if shared:
        warnings.warn(
            f"{shared} of {len(dataset.test)} test records have the same input as a training record. Unless that is chance, as "
            "with coarse features, these records are public in spite of the training, and the accuracy is too high. The number "
            "depends on the training records: do not publish it",
            OverlapWarning,
            stacklevel=2,
        )


def refuse_training_records(public: Split, training: Split, name: str) -> None:
    """Refuses public data that hold more of the training inputs than chance puts there, or are mostly made of them.

    Guarantees
        What lies in both splits is at most a tenth of each, counted by equal stored inputs, whatever their labels. Whether
        the rest is public is the owner's word; no look at the records could show it.
    """
    ours, theirs = _inputs(training), _inputs(public)
    known, members = set(ours), set(theirs)
    taken, copied = (sum(row in other for row in rows) / len(rows) for rows, other in ((ours, members), (theirs, known)))
    if max(taken, copied) > _CHANCE:
        raise DataError(
            "the public data hold training records",
            where="noise_layer.public_data",
            got=f"{name}: {copied:.0%} of its inputs are training inputs, and {taken:.0%} of those are in it",
            wanted="other records, none of which is trained on: what is computed from them is released and nothing pays for it",
            fix="name other data, or use redistribution learned, or training, which pays",
        )


def _inputs(split: Split) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(split.inputs)]
