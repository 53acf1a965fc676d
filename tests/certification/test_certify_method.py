"""The choices behind a radius: what there is, what goes together, and one clear error for everything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from twinproof.certification.method import PLAIN, Method, Sampling, default_confidence
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import add_noise

SCORES = Method(statistic="scores", confidence="hoeffding")


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("norm", "l3", "l1, l2, linf"),
        ("bound", "best", "tight, hgm"),
        ("statistic", "logits", "votes, scores"),
        ("confidence", "bootstrap", "clopper-pearson, hoeffding, empirical-bernstein"),
        ("runner_up", "bonferroni", "complement, union"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(name: str, value: str, known: str) -> None:
    with pytest.raises(ConfigError, match="there is no such") as refused:
        Method(**{name: value})
    assert (refused.value.where, refused.value.got) == (name, value)
    assert known in refused.value.wanted


def test_clopper_pearson_is_for_votes() -> None:
    with pytest.raises(ConfigError, match="not binomial") as refused:
        Method(statistic="scores")
    assert refused.value.wanted == "one of: hoeffding, empirical-bernstein"


@pytest.mark.parametrize("statistic", ["votes", "scores"])
def test_the_default_confidence_fits_the_statistic(statistic: str) -> None:
    assert Method(statistic=statistic, confidence=default_confidence(statistic)).statistic == statistic


@pytest.mark.parametrize("method", [SCORES, Method(confidence="hoeffding"), Method(runner_up="union")])
@pytest.mark.parametrize("sampling", [Sampling(target_radius=0.1), Sampling(shared_noise=True)])
def test_looks_and_shared_noise_go_with_plain_votes_only(method: Method, sampling: Sampling) -> None:
    assert PLAIN.is_plain
    sampling.refuse_other_methods(Method(norm="linf", bound="hgm"))
    with pytest.raises(ConfigError, match="plain votes only"):
        smooth(nn.Linear(2, 2), 0.5, method=method).certify(np.zeros((1, 2), dtype=np.uint8), sampling=sampling)


def _with_noise(law: Law, place: Place) -> nn.Module:
    torch.manual_seed(0)
    return add_noise(
        nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)),
        (2,),
        place,
        lambda shape: NoiseLayer(shape, law, 0.5, UniformSpread(shape)),
    )


@pytest.mark.parametrize("bound", ["hgm", "hgm-complement", "published"])
def test_bounds_for_gaussian_noise_are_refused_for_laplace_noise(bound: str) -> None:
    with pytest.raises(ConfigError, match="for laplace noise") as refused:
        smooth(_with_noise(Law.LAPLACE, Place.INPUT), method=Method(bound=bound))
    assert "pixeldp" in refused.value.wanted


def test_shared_noise_behind_a_layer_is_refused() -> None:
    smoothed = smooth(_with_noise(Law.GAUSSIAN, Place.FIRST_LAYER))
    with pytest.raises(ConfigError, match="equal noise at the input"):
        smoothed.certify(np.zeros((1, 2), dtype=np.uint8), sampling=Sampling(shared_noise=True))


def test_so_many_scores_that_their_squares_overflow_are_refused() -> None:
    with pytest.raises(ConfigError, match="overflow"):
        smooth(nn.Linear(2, 2), 0.5, method=SCORES).certify(np.zeros((1, 2), dtype=np.uint8), sampling=Sampling(n=2**23))


def test_a_network_without_noise_needs_a_sigma() -> None:
    with pytest.raises(ConfigError, match="no noise to smooth with"):
        smooth(nn.Linear(2, 2))
