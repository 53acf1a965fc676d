"""One data set as the records of several parties: for trying out on one machine what will lie on many."""

from __future__ import annotations

import numpy as np

from twinproof.data.record import Split
from twinproof.errors import ConfigError

_SHUFFLE = 20_200  # public: who gets which record of a public data set is no secret


def unequal_shares(records: Split, parties: int) -> dict[str, Split]:
    """The records dealt out at random to ``party-1``, ``party-2``..., the k-th of whom gets k times as many as the first.

    A stand-in for data that lie apart already, where nobody deals anything out: the dealing itself is not private.
    """
    if parties < 1 or parties * (parties + 1) // 2 > len(records):
        wanted = "1 or more, and few enough that each gets a record"
        raise ConfigError("this many parties cannot share the records", where="parties", got=parties, wanted=wanted)
    order = np.random.default_rng(_SHUFFLE).permutation(len(records))
    weights = np.arange(1, parties + 1)
    ends = np.cumsum(weights)[:-1] * len(records) // int(weights.sum())
    return {
        f"party-{number}": Split(records.inputs[rows], records.labels[rows])
        for number, rows in enumerate(np.split(order, ends), start=1)
    }
