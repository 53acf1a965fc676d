"""What n and alpha can certify at most, and the refusal of settings that can certify nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from certify_oracles import rule_for
from torch import nn

from twinproof.certification.grid_noise import input_noise
from twinproof.certification.method import Sampling
from twinproof.certification.radius import largest_radius
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError

REFERENCES = [(1_000, 2.463263), (10_000, 3.198578), (100_000, 3.811457)]


@pytest.mark.parametrize("sigma", [0.25, 1.0])
@pytest.mark.parametrize(("n", "factor"), REFERENCES)
def test_reference_values(n: int, factor: float, sigma: float) -> None:
    radius = largest_radius(Sampling(n=n), rule_for(input_noise(sigma, 255), 64))
    assert radius <= sigma * (factor + 5e-7)
    assert radius >= sigma * factor - 1e-4


def test_a_larger_dimension_never_gives_a_larger_radius() -> None:
    noise = input_noise(0.5, 255)
    radii = [largest_radius(Sampling(), rule_for(noise, dimension)) for dimension in (1, 784, 3072, 150_528, 10**9)]
    assert radii == sorted(radii, reverse=True)
    assert radii[-1] < radii[0]


def _needed(n: int, alpha: float, sigma: float) -> int:
    with pytest.raises(ConfigError, match="can never certify anything") as refused:
        largest_radius(Sampling(n=n, alpha=alpha), rule_for(input_noise(sigma, 255), 784))
    found = re.search(r"n of at least (\d+)", refused.value.wanted)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("n", "alpha", "sigma", "needed"),
    [
        (9, 0.001, 0.25, 10),
        (1, 0.001, 0.25, 10),
        (1, 0.5, 0.25, 2),  # alpha^(1/n) is exactly 1/2 at n = 1
        (3, 0.125, 0.25, 4),
        (1, 2.0**-20, 1.0, 21),
        (4, 0.05, 0.25, 5),
        (9, 0.001, 1e-4, 11),  # n = 10 leaves 0.0000003, which is rounded down to nothing
    ],
)
def test_what_can_never_certify_is_refused_with_the_least_n_that_can(n: int, alpha: float, sigma: float, needed: int) -> None:
    assert _needed(n, alpha, sigma) == needed
    rule = rule_for(input_noise(sigma, 255), 784)
    assert largest_radius(Sampling(n=needed, alpha=alpha), rule) > 0
    with pytest.raises(ConfigError):
        largest_radius(Sampling(n=needed - 1, alpha=alpha), rule)


def test_certify_refuses_before_it_draws() -> None:
    class Explodes(nn.Module):
        def forward(self, x: object) -> object:
            raise AssertionError("the network was run")

    with pytest.raises(ConfigError, match="at least 10"):
        smooth(Explodes(), 0.25).certify(np.zeros((1, 4), dtype=np.uint8), sampling=Sampling(n=9))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n", 0), ("n0", 0), ("n", -5), ("n", 10**12 + 1), ("n0", 2**64), ("alpha", 0.0), ("alpha", 1.0), ("alpha", -1.0)],
)
def test_settings_out_of_range(setting: str, value: float) -> None:
    with pytest.raises(ConfigError) as refused:
        Sampling(**{setting: value})  # type: ignore[arg-type]
    assert refused.value.where == setting
    assert refused.value.got == str(value)


def test_alpha_not_a_number() -> None:
    with pytest.raises(ConfigError, match="alpha is no probability"):
        Sampling(alpha=float("nan"))
