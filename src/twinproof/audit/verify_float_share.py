"""What float64 errs in the layer before the noise, found again from the layer itself: certificates must pay for it.

The layer is rounded to the noise's grid, which costs whole steps and is known to any reader of the record. That it was not
exact before it was rounded costs a little more, which only its weights tell.

Guarantees
    A recorded slack passes only if it is not below the steps of the grid and this share together, but for the last bits of our
    own sum: one that pays for the steps alone is refused, unless the share is less than 2^-50 of them. Sums of magnitudes come
    from running the layer with the magnitudes of its weights, not from the certifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinproof.audit.verification import Problem
from twinproof.audit.verify_noise import Noise
from twinproof.audit.verify_norm_search import linear_part
from twinproof.audit.verify_reach import GAUSSIAN

if TYPE_CHECKING:
    from torch import nn

# Of a product besides the sum itself: the weight over its scale, the input's quotient, the step.
ROUNDINGS = 8
# A root, a product and a sum, each right to half of the last bit.
_OWN_ROUNDING = 2.0**-50


def relative_share(inputs: int) -> float:
    """How far a float64 product with so many inputs can be from the truth, as a share of the sum of its terms' magnitudes.

    A sum errs by as many units of the last place as it has terms, in whatever order it is taken (Higham, chapter 3).
    """
    return (inputs + ROUNDINGS) * 2.0**-53


def magnitudes_of(layer: nn.Module) -> nn.Module:
    """The layer without bias, in float64, each weight replaced by its magnitude."""
    import torch

    plain = linear_part(layer)
    with torch.no_grad():
        plain.get_parameter("weight").abs_()
    return plain


def row_sums(layer: nn.Module, shape: tuple[int, ...], scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of the magnitudes that make up each output, divided by its scale, at the furthest input in [0, 1]."""
    import torch

    with torch.no_grad():
        outputs = magnitudes_of(layer)(torch.ones((1, *shape), dtype=torch.float64))
    return np.asarray(outputs.flatten().numpy() / scales, dtype=np.float64)


def layer_error(law: str, inputs: int, rows: NDArray[np.float64]) -> float:
    """How far apart float64 can put the layers of two inputs, in the norm of the noise; ``rows`` are those of ``row_sums``."""
    length = float(np.linalg.norm(rows) if law == GAUSSIAN else rows.sum())
    return 2 * relative_share(inputs) * length


def share_problems(noise: Noise, rounding: float, error: float) -> Iterator[Problem]:
    """Whether the record's slack pays for ``rounding`` to the grid and for the ``error`` of float64, both in its own units."""
    paid = rounding + error
    if not noise.slack >= paid * (1 - _OWN_ROUNDING):
        what = "slack is understated: rounding to the grid and in float64 costs more"
        yield Problem(noise.file, what, repr(noise.slack), f"at least {paid!r}")
