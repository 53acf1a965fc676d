"""The most records that a party of a declared size may say to have drawn in one round."""

from __future__ import annotations

# How often an honest draw lies above the cap. Privacy does not rest on it: the party itself brings such a sum down.
_RARE = 1e-12


def draw_cap(records: int, sample_rate: float) -> int:
    """The binomial quantile of ``records`` draws at ``sample_rate``: at least 1, and never above ``records``.

    It is what a party can move the model by, in clipping norms, whatever it sends: the coordinator lets no longer sum in.
    """
    from scipy.stats import binom

    return min(records, max(1, int(binom.isf(_RARE, records, sample_rate))))
