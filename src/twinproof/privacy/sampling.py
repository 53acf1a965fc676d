"""Poisson sampling: every record is taken independently with the same probability."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinproof.randomness import Key


def poisson_sample(key: Key, step: int, *, records: int, sample_rate: float) -> NDArray[np.int64]:
    """Indices of the records that ``step`` takes.

    Guarantees
        Each record is taken iff its own 64-bit word lies below floor(rate * 2^64): independently, with probability at most
        ``sample_rate`` and less than 2^-64 below it. Which records were taken is as secret as the key.
    """
    threshold = math.floor(sample_rate * 2**64)
    if threshold >= 2**64:
        return np.arange(records, dtype=np.int64)
    return np.flatnonzero(key.words("sampling", step, count=records) < np.uint64(threshold)).astype(np.int64)
