"""The noise behind certificates: a grid that is fine enough, a tau and a slack that pay for it, and norms at the input.

The same facts stand in certificates.json and in attacks.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twinproof.auditing.fields import is_positive
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_method import BOTH, FIRST_LAYER, INPUT
from twinproof.auditing.verify_reach import GAUSSIAN, LAPLACE

# Steps of the grid within one deviation for which tau is proven.
FEWEST_STEPS = 64
# Two float64 computations of one product.
FLOAT_SLACK = 1e-9
_LAST_BITS = 1e-12
# Deviations at which the tables of the noise end: no draw goes further.
TABLE_ENDS = {GAUSSIAN: 8.5, LAPLACE: 36.0}
# Whole numbers that float32 holds.
FLOAT32_EXACT = 2**24


@dataclass(frozen=True)
class Noise:
    """What ``file`` says about the noise; ``dimension`` is the number of its coordinates."""

    file: str
    norm: str
    law: str
    place: str
    bound: str
    sigma: float
    grid: float
    levels: int
    dimension: int
    tau: float
    operator_norm: float
    slack: float
    slackless_norm: float | None = None

    @property
    def steps(self) -> float:
        """Steps of the grid within one deviation; behind a layer the grid is in units of its outputs."""
        return self.sigma * (1 if self.place == FIRST_LAYER else self.levels) / self.grid


def noise_of(file: str, settings: dict[str, Any], *, norm: str, dimension: str) -> Noise:
    """The facts of sound settings; ``norm`` and ``dimension`` are the keys that hold the radii's norm and the coordinates."""
    return Noise(
        file=file,
        norm=settings[norm],
        law=settings["law"],
        place=settings["place"],
        bound=settings["bound"],
        sigma=float(settings["sigma"]),
        grid=float(settings["grid"]),
        levels=settings["levels"],
        dimension=settings[dimension],
        tau=float(settings["tau"]),
        operator_norm=float(settings["operator_norm"]),
        slack=float(settings["slack"]),
        slackless_norm=slackless_norm_of(settings),
    )


def slackless_norm_of(settings: dict[str, Any]) -> float | None:
    """The norm that needs no slack, where the settings state one that can be used; records from before it have none."""
    stated = settings.get("slackless_norm")
    return float(stated) if stated is not None and is_positive(stated) else None


def smallest_tau(law: str, steps: float, dimension: int) -> float:
    """The least distance between noise on a grid and the law itself that can be stated, with ``steps`` in a deviation.

    Each of a coordinate's cells is rounded to a multiple of 2^-64; docs/decisions/0002-noise-on-a-grid.md.
    """
    return dimension * (2 * TABLE_ENDS[law] * steps * 2.0**-64 + 2.0**-49) + 2.0**-36


def smallest_slack(noise: Noise) -> float:
    """What rounding to the grid costs: two inputs' rounding errors, each at most half a step in every coordinate.

    At the input stored levels lie on the grid already; at both places only the layer is rounded (``verify_two_noises``).
    """
    if noise.place != FIRST_LAYER:
        return 0.0
    return noise.grid * (math.sqrt(noise.dimension) if noise.law == GAUSSIAN else noise.dimension)


def identity_norm(norm: str, law: str, dimension: int) -> float:
    """The longest a change of length 1 in ``norm`` can be in the norm of the noise: l2 for Gaussian, l1 for Laplace."""
    target, source = (2.0 if law == GAUSSIAN else 1.0), {"l1": 1.0, "l2": 2.0, "linf": math.inf}[norm]
    return math.pow(dimension, max(0.0, 1 / target - 1 / source))


def noise_problems(noise: Noise) -> Iterator[Problem]:
    """What the numbers of sound settings say about each other."""
    if noise.place != FIRST_LAYER and noise.grid > 1:
        yield Problem(noise.file, "the noise grid is coarser than stored levels", repr(noise.grid), "at most 1")
    if not noise.steps >= FEWEST_STEPS * (1 - FLOAT_SLACK):
        got = f"{noise.steps!r} steps for sigma"
        yield Problem(noise.file, "the noise grid is too coarse", got, f"at least {FEWEST_STEPS}")
    least = smallest_tau(noise.law, noise.steps, noise.dimension)
    if not noise.tau >= least * (1 - FLOAT_SLACK):
        yield Problem(noise.file, "tau is understated", repr(noise.tau), f"at least {least!r}")
    paid = smallest_slack(noise)
    if not noise.slack >= paid * (1 - FLOAT_SLACK):
        what = "slack is understated: rounding to the grid costs more"
        yield Problem(noise.file, what, repr(noise.slack), f"at least {paid!r}")
    if noise.place != BOTH and noise.slackless_norm is not None:
        what = "only noise at two places can be charged without slack"
        yield Problem(noise.file, what, repr(noise.slackless_norm), "null")
    if noise.place == INPUT:
        yield from exactness_problems(noise, float(noise.levels))
        truth = identity_norm(noise.norm, noise.law, noise.dimension)
        if not abs(noise.operator_norm - truth) <= FLOAT_SLACK * truth or noise.operator_norm < truth * (1 - _LAST_BITS):
            what = "operator_norm is not that of the input itself"
            yield Problem(noise.file, what, repr(noise.operator_norm), repr(truth))


def exactness_problems(noise: Noise, largest: float, room: float = 1.0) -> Iterator[Problem]:
    """Whether numbers of up to ``largest`` (levels, or units of the layer) and the noise add up exactly in float32.

    ``room`` is the share of float32's whole numbers that they may take.
    """
    steps = largest / noise.grid + TABLE_ENDS[noise.law] * noise.steps
    if not steps < room * FLOAT32_EXACT:
        what = "the noise grid is too fine: what the noise is added to is not exact in float32"
        yield Problem(noise.file, what, f"{steps!r} steps", f"fewer than {int(room * FLOAT32_EXACT)}")
