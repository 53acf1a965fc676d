"""The delta at which a privacy-style bound reaches farthest: a free parameter of the analysis, not of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from twinproof.certification.bounds.bound import Floats

SMALLEST_DELTA = 1e-30
_GRID = 96
# Each golden step keeps 0.618 of the interval: from two cells of the grid (about 1.5 in ln delta) to the last bits.
_STEPS = 80
_GOLDEN = (math.sqrt(5) - 1) / 2


def best_delta(height: Callable[[Floats], Floats], largest: Floats) -> Floats:
    """For each pair the delta in [1e-30, largest) with the greatest ``height``: a fixed grid in ln delta, then golden section.

    Guarantees
        The result lies in that interval and depends on the arguments alone. That it is the best one is not needed by any proof:
        every delta is sound, and a poor one only shortens the reach. (In every case tried there is one peak.)
    """
    first = np.full_like(largest, math.log(SMALLEST_DELTA))
    last = np.maximum(np.log(np.maximum(largest, SMALLEST_DELTA)), first)
    cell = (last - first) / _GRID
    places = first + cell * np.arange(_GRID)[:, None]
    heights = np.stack([height(np.exp(place)) for place in places])
    peak = np.take_along_axis(places, heights.argmax(axis=0)[None], axis=0)[0]
    left, right = np.maximum(peak - cell, first), np.minimum(peak + cell, last)
    for _ in range(_STEPS):
        step = _GOLDEN * (right - left)
        near, far = right - step, left + step
        climbs = height(np.exp(far)) > height(np.exp(near))
        left, right = np.where(climbs, near, left), np.where(climbs, right, far)
    found = (left + right) / 2
    # The grid's own best point stays if the section, on a curve with several peaks, ended below it.
    better = height(np.exp(found)) >= heights.max(axis=0)
    return np.asarray(np.exp(np.where(better, found, peak)), dtype=np.float64)
