"""Laplace numbers by inversion are finite for every uniform that a generator can give."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twinproof.layers.noise import laplace_from_uniform

# The ends of [0, 1) on a CPU (steps of 2**-24) and on a GPU (steps of 2**-32 below 2**-8), and the middle.
EDGES = torch.tensor([0.0, 2.0**-33, 2.0**-25, 2.0**-24, 0.5 - 2.0**-25, 0.5, 1 - 2.0**-23, 1 - 2.0**-24])


def _all_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def test_no_uniform_gives_infinity() -> None:
    values = laplace_from_uniform(EDGES)
    assert _all_finite(values)
    assert float(values.abs().max()) == torch.tensor(24 * math.log(2)).item()
    assert (values[1:] >= values[:-1]).all(), "inversion is monotone"


def test_a_planted_inversion_without_the_half_step_is_caught() -> None:
    centred = EDGES - 0.5
    assert not _all_finite(-torch.sign(centred) * torch.log1p(-2 * centred.abs()))


def test_quantiles_are_laplaces() -> None:
    uniform = torch.linspace(0.001, 0.999, 999)
    exact = [math.log(2 * u) if u < 0.5 else -math.log(2 - 2 * u) for u in uniform.tolist()]
    torch.testing.assert_close(laplace_from_uniform(uniform), torch.tensor(exact), rtol=1e-3, atol=1e-6)
