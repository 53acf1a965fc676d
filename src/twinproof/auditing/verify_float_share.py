"""What float64 errs in the layer before the noise, found again from the layer itself: certificates must pay for it.

The layer is rounded to the noise's grid, which costs whole steps and is known to any reader of the record. That it was not
exact before it was rounded costs a little more, which only its weights tell.

Guarantees
    A recorded slack passes only if it is not below the steps of the grid and this share together, but for the last bits of our
    own sum: one that pays for the steps alone is refused, unless the share is less than 2^-50 of them. Sums of magnitudes come
    from the verifier's own matrix of the layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_noise import Noise
from twinproof.auditing.verify_reach import GAUSSIAN

# Of a product besides the sum itself: the weight over its scale, the input's quotient, the step.
ROUNDINGS = 8
# A root, a product and a sum, each right to half of the last bit.
_OWN_ROUNDING = 2.0**-50


def relative_share(inputs: int) -> float:
    """How far a float64 product with so many inputs can be from the truth, as a share of the sum of its terms' magnitudes.

    A sum errs by as many units of the last place as it has terms, in whatever order it is taken (Higham, chapter 3).
    """
    return (inputs + ROUNDINGS) * 2.0**-53


def layer_error(law: str, inputs: int, rows: NDArray[np.float64]) -> float:
    """How far apart float64 can put the layers of two inputs, in the norm of the noise; ``rows`` are its sums of magnitudes."""
    length = float(np.linalg.norm(rows) if law == GAUSSIAN else rows.sum())
    return 2 * relative_share(inputs) * length


def share_problems(noise: Noise, rounding: float, error: float) -> Iterator[Problem]:
    """Whether the record's slack pays for ``rounding`` to the grid and for the ``error`` of float64, both in its own units."""
    paid = rounding + error
    if not noise.slack >= paid * (1 - _OWN_ROUNDING):
        what = "slack is understated: rounding to the grid and in float64 costs more"
        yield Problem(noise.file, what, repr(noise.slack), f"at least {paid!r}")
