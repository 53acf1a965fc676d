"""Whether records that count as public are training records."""

from __future__ import annotations

import warnings

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
    ours, theirs = _inputs(dataset.train), _inputs(dataset.test)
    known, members = set(ours), set(theirs)
    shared = sum(row in known for row in theirs)
    if known == members:
        raise DataError(
            "the test records are the training records",
            where="data.test",
            got=f"{dataset.name}: {len(ours)} training and {len(theirs)} test records, with the same inputs",
            wanted="other records: the test records are public, the training records are not",
            fix="name other test records, or leave out `test` and set public_fraction",
        )
    if shared:
        warnings.warn(
            f"{shared} of {len(theirs)} test records have the same input as a training record. Test records are public, so the "
            "model's privacy does not help those; and accuracies on them are too high. This number depends on the training "
            "records: do not publish it",
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
