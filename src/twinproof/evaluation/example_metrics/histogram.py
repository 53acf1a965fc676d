"""Histograms on a logarithmic scale, which several runs or groups can share."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twinproof.errors import ConfigError, DataError
from twinproof.evaluation.example_metrics.record import Values

BINS_PER_DECADE = 10
# Beyond these the powers of ten are no longer floats that grow.
_SMALLEST, _LARGEST = 1e-300, 1e300


@dataclass(frozen=True)
class LogHistogram:
    """Counts between growing ``edges`` (the last bin holds its upper edge too), and of what lies outside of them.

    Guarantees
        Every value is counted exactly once: ``total`` is their number. What has no logarithm is in ``not_positive``.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    not_positive: int
    below: int
    above: int

    @property
    def total(self) -> int:
        """How many values were counted."""
        return sum(self.counts) + self.not_positive + self.below + self.above

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        record = asdict(self)
        return {**record, "edges": list(self.edges), "counts": list(self.counts)}


def log_edges(*samples: ArrayLike, per_decade: int = BINS_PER_DECADE) -> tuple[float, ...]:
    """Edges 10^(k / per_decade) around all positive values of all ``samples``; one decade from 1 where there are none.

    Values below 1e-300 or above 1e300 get no bins.
    """
    if per_decade < 1:
        raise ConfigError("there are no bins", where="per_decade", got=per_decade, wanted="at least 1")
    joined = np.concatenate([finite_values(sample) for sample in samples]) if samples else np.empty(0)
    positive = joined[(joined >= _SMALLEST) & (joined <= _LARGEST)]
    if len(positive) == 0:
        return _powers(0, per_decade, per_decade)
    low, high = math.log10(positive.min()) * per_decade, math.log10(positive.max()) * per_decade
    first, last = math.floor(low), math.ceil(high)
    # The power may round to the other side of the value whose logarithm it is.
    first -= 10 ** (first / per_decade) > positive.min()
    last += 10 ** (last / per_decade) < positive.max()
    return _powers(first, max(last, first + 1), per_decade)


def log_histogram(values: ArrayLike, edges: tuple[float, ...] | None = None) -> LogHistogram:
    """The histogram of ``values`` over ``edges``, or over their own ``log_edges``."""
    sample = finite_values(values)
    chosen = log_edges(sample) if edges is None else edges
    if len(chosen) < 2 or chosen[0] <= 0 or any(high <= low for low, high in pairwise(chosen)):
        got = f"{len(chosen)} edges, {', '.join(f'{edge:g}' for edge in chosen[:4])}..."
        raise ConfigError("these are no edges of bins", where="edges", got=got, wanted="two or more, growing, above 0")
    positive = sample[sample > 0]
    counts = np.histogram(positive, bins=np.array(chosen))[0]
    below, above = int((positive < chosen[0]).sum()), int((positive > chosen[-1]).sum())
    return LogHistogram(chosen, tuple(int(count) for count in counts), len(sample) - len(positive), below, above)


def finite_values(values: ArrayLike) -> Values:
    """``values`` as one column of finite numbers; anything else is refused."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not np.isfinite(sample).all():
        raise DataError(
            "these values cannot be summarised",
            where="values",
            got=f"shape {sample.shape}, {int((~np.isfinite(sample)).sum())} not finite",
            wanted="one column of finite numbers",
        )
    return sample


def _powers(first: int, last: int, per_decade: int) -> tuple[float, ...]:
    return tuple(10.0 ** (number / per_decade) for number in range(first, last + 1))
