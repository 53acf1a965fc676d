"""Laplace noise on the input and behind the first layer of one pass: what a change costs, found again from the layer itself.

Guarantees
    Recorded norms pass only if none is below what is proven for the weights and scales of the run: for the bound
    ``composition`` the sum of what the two noises charge, for the others the least of either alone and of the split by
    coordinates. For ``published``, which is refuted, only if none is below what the paper claims: the sum, for noise that is
    ``stated`` times the noise in the run. Sums of magnitudes come from the verifier's own matrix of the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_float_share import relative_share, share_problems
from twinproof.auditing.verify_noise import FLOAT_SLACK, TABLE_ENDS, Noise, exactness_problems, identity_norm
from twinproof.auditing.verify_reach import COMPOSITION, LAPLACE, PUBLISHED

STATED_OVER_DRAWN = 2.0
"""Appendix N's psi: how much larger, beside draws that are kept, the noise is said to be than the one drawn anew."""


@dataclass(frozen=True)
class TwoNoises:
    """What the network draws: scales on the input and behind the layer, which has these sums of its ``columns``.

    ``least_provable`` takes a number and returns it if the layer is proven to stretch by no more, else a larger one;
    ``stated`` is how many times larger its paper says that both noises are.
    """

    input_scale: float
    hidden_scale: float
    columns: NDArray[np.float64]
    outputs: int
    least_provable: Callable[[float], float]
    stated: float = 1.0

    def known_costs(self, norm: str) -> tuple[float, float]:
        """Per unit of ``norm``: to the noise of the input alone, and split by coordinates; both exact."""
        each = np.minimum(1 / self.input_scale, self.columns / self.hidden_scale)
        split = {"l1": each.max(), "l2": np.linalg.norm(each), "linf": each.sum()}[norm]
        return identity_norm(norm, LAPLACE, len(self.columns)) / self.input_scale, float(split)

    def least_rate(self, norm: str, bound: str, stated_rate: float) -> float:
        """``stated_rate`` if ``bound`` charges no more per unit of ``norm``, else a larger number that it would charge."""
        alone, split = self.known_costs(norm)
        if bound not in (PUBLISHED, COMPOSITION):
            if min(alone, split) <= stated_rate:
                return stated_rate
            return min(alone, split, self._least_hidden(stated_rate))
        times = self.stated if bound == PUBLISHED else 1.0
        rate = (alone + self._least_hidden(stated_rate * times - alone)) / times
        return rate if rate > stated_rate * (1 + FLOAT_SLACK) else stated_rate

    def _least_hidden(self, stated_rate: float) -> float:
        """What the noise behind the layer alone charges: a number as low as can be proven, once the stated one cannot."""
        claimed = stated_rate * self.hidden_scale
        if not claimed > 0:
            return float(self.columns.max()) / self.hidden_scale  # the norm is at least its largest column
        return self.least_provable(claimed) / self.hidden_scale

    def float_error(self, noise: Noise) -> float:
        """How far apart float64 can put the layers of two noisy inputs, beside rounding to the grid; in input units.

        As with one noise (``verify_float_share``), but that noisy inputs reach as far as the table of the noise.
        """
        furthest = 1 + math.ceil(TABLE_ENDS[LAPLACE] * noise.steps) * noise.grid / noise.levels
        return (
            2 * relative_share(len(self.columns)) * float(self.columns.sum()) * furthest * self.input_scale / self.hidden_scale
        )


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
    alone, _ = drawn.known_costs(noise.norm)
    for name, said in (("operator_norm", noise.operator_norm), ("slackless_norm", noise.slackless_norm)):
        if said is None:
            continue
        stated = said / noise.sigma * (1 + FLOAT_SLACK)
        # Where rounding is not paid for, only the noise of the input can be charged for all.
        of_input = name == "slackless_norm" and noise.bound not in (PUBLISHED, COMPOSITION)
        least = alone if of_input else drawn.least_rate(noise.norm, noise.bound, stated)
        if not stated >= least:
            what = f"{name} is below what the noise and the weights of the first layer allow"
            yield Problem(noise.file, what, repr(said), f"at least {noise.sigma * least!r}")
    # Half the room: a quotient in float32 must still tell whole steps apart.
    yield from exactness_problems(noise, float(noise.levels), room=0.5)


def is_usable(scale: float) -> bool:
    """Whether noise of that scale hides anything."""
    return scale > 0 and math.isfinite(scale)
