"""Laplace noise on the input and behind the first layer of one pass: what a change costs, found again from the layer itself.

Guarantees
    Recorded norms pass only if none is below what is proven for the weights and scales of the run: for the bound
    ``composition`` the sum of what the two noises charge, for the others the least of either alone and of the split by
    coordinates. For ``published``, which is refuted, only if none is below what the paper claims: the sum, for noise that is
    ``stated`` times the noise in the run. Sums of magnitudes come from running the layer with the magnitudes of its weights,
    not from the certifier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinproof.audit.verification import Problem
from twinproof.audit.verify_float_share import magnitudes_of, relative_share, share_problems
from twinproof.audit.verify_noise import FLOAT_SLACK, TABLE_ENDS, Noise, exactness_problems, identity_norm
from twinproof.audit.verify_reach import COMPOSITION, LAPLACE, PUBLISHED

if TYPE_CHECKING:
    from torch import nn

STATED_OVER_DRAWN = 2.0
"""Appendix N's psi: how much larger, beside draws that are kept, the noise is said to be than the one drawn anew."""


@dataclass(frozen=True)
class TwoNoises:
    """What the network draws: scales on the input and behind the layer, which without noise moves by ``hidden_norm``.

    ``stated`` is how many times larger its paper says that both are.
    """

    input_scale: float
    hidden_scale: float
    hidden_norm: float
    columns: NDArray[np.float64]
    outputs: int
    stated: float = 1.0

    def costs(self, norm: str) -> tuple[float, float, float]:
        """Per unit of ``norm``: to the noise of the input alone, to that of the layer alone, and split by coordinates."""
        each = np.minimum(1 / self.input_scale, self.columns / self.hidden_scale)
        split = {"l1": each.max(), "l2": np.linalg.norm(each), "linf": each.sum()}[norm]
        alone = identity_norm(norm, LAPLACE, len(self.columns)) / self.input_scale
        return alone, self.hidden_norm / self.hidden_scale, float(split)

    def float_error(self, noise: Noise) -> float:
        """How far apart float64 can put the layers of two noisy inputs, beside rounding to the grid; in input units.

        As with one noise (``verify_float_share``), but that noisy inputs reach as far as the table of the noise.
        """
        furthest = 1 + math.ceil(TABLE_ENDS[LAPLACE] * noise.steps) * noise.grid / noise.levels
        return (
            2 * relative_share(len(self.columns)) * float(self.columns.sum()) * furthest * self.input_scale / self.hidden_scale
        )

    def least_rates(self, norm: str, bound: str) -> tuple[float, float]:
        """The least that ``bound`` charges per unit of ``norm``: where rounding is paid beside it, and where it is not."""
        alone, hidden, split = self.costs(norm)
        if bound == PUBLISHED:
            return (alone + hidden) / self.stated, (alone + hidden) / self.stated
        if bound == COMPOSITION:
            return alone + hidden, alone + hidden
        return min(alone, hidden, split), alone


def column_sums(layer: nn.Module, shape: tuple[int, ...], scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far the layer moves in l1, each output divided by its scale, for each coordinate of the input alone."""
    import torch

    point = torch.zeros((1, *shape), dtype=torch.float64, requires_grad=True)
    moved = (magnitudes_of(layer)(point).flatten() / torch.from_numpy(scales)).sum()
    (sums,) = torch.autograd.grad(moved, point)
    return np.asarray(sums.flatten().numpy(), dtype=np.float64)


def two_noises_problems(noise: Noise, drawn: TwoNoises) -> Iterator[Problem]:
    """Scale, number of coordinates, both norms and slack of the record against the network."""
    if noise.sigma != drawn.input_scale:
        what = "sigma is not the scale of the network's noise on its input"
        yield Problem(noise.file, what, repr(noise.sigma), repr(drawn.input_scale))
    coordinates = len(drawn.columns) + drawn.outputs
    if noise.dimension != coordinates:
        what = "dimension is not the number of coordinates that get noise"
        yield Problem(noise.file, what, str(noise.dimension), str(coordinates))
    yield from share_problems(noise, drawn.outputs * noise.grid / noise.levels, drawn.float_error(noise))
    least, slackless = drawn.least_rates(noise.norm, noise.bound)
    for name, said, rate in (
        ("operator_norm", noise.operator_norm, least),
        ("slackless_norm", noise.slackless_norm, slackless),
    ):
        if said is not None and not said >= noise.sigma * rate * (1 - FLOAT_SLACK):
            what = f"{name} is below what the noise and the weights of the first layer allow"
            yield Problem(noise.file, what, repr(said), f"at least {noise.sigma * rate!r}")
    # Half the room: a quotient in float32 must still tell whole steps apart.
    yield from exactness_problems(noise, float(noise.levels), room=0.5)


def is_usable(scale: float) -> bool:
    """Whether noise of that scale hides anything."""
    return scale > 0 and math.isfinite(scale)
