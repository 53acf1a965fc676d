"""The law of a noise table, measured against probabilities of 60 digits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from twinproof.certification.grid_noise import NoiseTable

WORD = 1 << 64


def exact_cells(tail: Callable[[Decimal], Decimal], steps: float, reach: int) -> tuple[Decimal, ...]:
    """The probabilities of the cells 1, 2, ... up to ``reach``, and of all beyond; ``tail`` is the probability beyond x > 0."""
    with localcontext() as context:
        context.prec = 60
        tails = [tail((k - Decimal("0.5")) / Decimal(steps)) for k in range(1, reach + 1)]
        return (*(near - far for near, far in itertools.pairwise(tails)), tails[-1])


def distance_to(table: NoiseTable, half: tuple[Decimal, ...]) -> float:
    """The total variation distance between the law of the table and the symmetric one with these cells on each side."""
    bounds = [0, *(int(bound) for bound in table.boundaries), WORD]
    got = [Decimal(above - below) / WORD for below, above in itertools.pairwise(bounds)]
    wanted = [*reversed(half), 1 - 2 * sum(half), *half]
    assert len(got) == len(wanted)
    return float(sum(abs(one - other) for one, other in zip(got, wanted, strict=True)) / 2)


def cell_error(table: NoiseTable, tail: Callable[[Decimal], Decimal], steps: float, k: int) -> tuple[float, float]:
    """The probability of cell k, and how far the table is off it."""
    got = int(table.boundaries[table.reach - k]) - int(table.boundaries[table.reach - k - 1])
    with localcontext() as context:
        context.prec = 60
        near, far = (tail((k + half) / Decimal(steps)) for half in (Decimal("-0.5"), Decimal("0.5")))
        return float(near - far), abs(float(Decimal(got) / WORD - (near - far)))


def changed(table: NoiseTable, change: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]) -> NoiseTable:
    """A table with other boundaries: a planted bug."""
    return NoiseTable(table.reach, change(table.boundaries))
