"""Float addition is not translation invariant: a classifier that reads low bits gets a false certificate the naive way.

The construction (after the idea of Voracek and Hein, ICLR 2023): adding float32 noise to 1 can only reach some float32 numbers,
because the noise and the sum are rounded to the grid of their own magnitude. A number that no noise leads to from 1 reveals
that the input was not 1. The classifier says A as soon as one coordinate reveals it, else B.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from certify_oracles import bound_from_votes
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.keys import Key

A = 0
DIMENSION, SIGMA = 20, 4.0
SAMPLING = Sampling(n0=100, n=10_000, alpha=0.001)


class ReadsLowBits(nn.Module):
    """A where some coordinate cannot be 1 + noise in float32, else B."""

    def forward(self, x: Tensor) -> Tensor:
        unreachable = (x != 1 + (x - 1)).any(dim=1).to(torch.float32)
        return torch.stack((unreachable, 1 - unreachable), dim=1)


def _naive(rungs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Votes for A at each place on the diagonal, the textbook way: float32 noise added to a float32 input."""
    noise = torch.randn(SAMPLING.n, DIMENSION, generator=torch.Generator().manual_seed(1)) * SIGMA
    model = ReadsLowBits()
    return np.array([int((model(float(np.float32(rung)) + noise).argmax(dim=1) == A).sum()) for rung in rungs])


def _on_the_grid(rungs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The same votes through the real certifier."""
    stored = np.repeat(np.rint(rungs * 255).astype(np.int64)[:, None], DIMENSION, axis=1)
    smoothed = smooth(ReadsLowBits(), SIGMA, levels=255)
    made = smoothed.certify(stored, sampling=SAMPLING, key=Key.from_seed(1))
    return np.array([one.votes if one.top == A else SAMPLING.n - one.votes for one in made])


def _false_claims(votes: NDArray[np.int64], rungs: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Pairs (certified for A here, but the smoothed answer there, inside the radius, is B)."""
    bound = bound_from_votes(votes, SAMPLING, SIGMA, 0.0)
    return [
        (float(rungs[here]), float(rungs[there]))
        for here in np.flatnonzero(bound.certified)
        for there in np.flatnonzero(votes < SAMPLING.n / 2)
        if abs(rungs[here] - rungs[there]) * math.sqrt(DIMENSION) < bound.radii[here]
    ]


RUNGS = np.arange(0, 256, 51) / 255  # 0, 0.2, ..., 1 on the diagonal of the unit cube


def test_naive_smoothing_certifies_something_false() -> None:
    votes = _naive(RUNGS)
    assert votes[-1] == 0, "at all ones every single draw votes for B"
    assert (0.0, 1.0) in _false_claims(votes, RUNGS), "yet all zeros were certified for A beyond the distance to all ones"


def test_grid_noise_certifies_only_what_is_true() -> None:
    votes = _on_the_grid(RUNGS)
    assert _false_claims(votes, RUNGS) == []
    # Not by abstaining: the classifier reads low bits everywhere alike, which is a fact about it that may be certified.
    assert bound_from_votes(votes, SAMPLING, SIGMA, 0.0).certified.all()
