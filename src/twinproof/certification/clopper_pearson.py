"""The exact one-sided lower confidence bound on a probability, from votes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def clopper_pearson_lower(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    """The largest p that ``votes`` of ``draws`` independent draws rule out from below, at level ``alpha``.

    Guarantees
        P(bound > p) <= alpha for every p and every number of draws (Clopper and Pearson 1934). The bound is the alpha
        quantile of Beta(votes, draws - votes + 1), 0 without votes. Test: exact enumeration over a grid of p and n.
    """
    from scipy.special import betaincinv

    count = np.asarray(votes, dtype=np.float64)
    bound = betaincinv(np.maximum(count, 1.0), draws - count + 1.0, alpha)
    return np.where(count > 0, bound, 0.0)
