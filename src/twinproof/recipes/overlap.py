"""Whether records that were named as public are the training records themselves, under another name."""

from __future__ import annotations

import numpy as np

from twinproof.data.record import Split
from twinproof.errors import DataError

# A few equal inputs are chance (blank pictures, coarse features); a tenth of a set is a copy, a part or a superset of it.
_CHANCE = 0.1


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
