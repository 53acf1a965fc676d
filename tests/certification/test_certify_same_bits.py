"""Plain smoothing gives the certificates that it has always given: published keys must stay good for drawing votes again."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from certify_oracles import bound_from_votes
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import nn

from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.keys import Key
from twinproof.rounding import round_down

INPUTS: NDArray[np.int64] = np.random.default_rng(5).integers(0, 17, size=(40, 16))


def _network(layers: int) -> nn.Module:
    """Small whole weights on sixteenths: nothing is rounded, so that no machine answers otherwise."""
    first, last = nn.Linear(16, 4), nn.Linear(4, 3)
    with torch.no_grad():
        first.weight.copy_(torch.from_numpy(np.random.default_rng(3).integers(-4, 5, size=(4, 16)).astype(np.float32)))
        last.weight.copy_(torch.tensor([[1.0, 2, -1, 0], [0, 1, -3, 1], [2, -1, 0, 1]]))
        first.bias.zero_()
        last.bias.zero_()
    return first if layers == 1 else nn.Sequential(first, nn.ReLU(), last)


# Made by the version before noise could enter anywhere else.
@pytest.mark.parametrize(
    ("layers", "sampling", "digest"),
    [
        (1, Sampling(n0=40, n=900), "6900bd50bd561578fcaf2a6811d0611aa4e69eaeb6be2be3f063d9fa07cf2b88"),
        (1, Sampling(n0=40, n=900, target_radius=0.05), "22db26451f20028477f81a82f7349accdc11dce6c678d05cf85ab9d7e6fe5b3b"),
        (2, Sampling(n0=40, n=900, shared_noise=True), "0da81ceaceb331dc30ec502baef13b828d2a14f0f09cb89f4c98e2871d267868"),
    ],
    ids=["all draws", "target radius", "shared noise"],
)
def test_certificates_are_those_of_the_first_version(layers: int, sampling: Sampling, digest: str) -> None:
    made = smooth(_network(layers), 0.5, levels=16).certify(INPUTS, sampling=sampling, key=Key.from_seed(77))
    lines = "\n".join(",".join(one.row()) for one in made)
    assert hashlib.sha256(lines.encode()).hexdigest() == digest


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("n", [150, 10_000])
def test_radii_are_cohens_formula_to_the_last_digit(n: int, sigma: float) -> None:
    votes, sampling, tau = np.arange(n // 2, n + 1), Sampling(n=n), 1.6e-11
    made = bound_from_votes(votes, sampling, sigma, tau)
    probability = clopper_pearson_lower(votes, n, sampling.alpha) - tau
    certified = probability > 0.5
    exact = sigma * ndtri(np.where(certified, probability, 0.5))
    assert (made.certified == certified).all()
    assert made.radii.tolist() == [round_down(float(radius)) for radius in exact]
