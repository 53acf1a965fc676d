"""Certificates in l1, l2 and linf, by votes and by scores, with noise anywhere: doubled radii of a half-space are found out.

The boundary of a half-space stays where it is under symmetric noise, before or behind a linear layer, so that the distance
to it is known exactly in every norm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import audited_runs as small
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.auditing.certificate_attacks import CertificateAttacker
from twinproof.auditing.certificate_judge import judging_method
from twinproof.auditing.certificate_verdict import FLIPPED, AttackedCertificate
from twinproof.certification.method import Method, Sampling
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place
from twinproof.layers.noise_placement import add_noise
from twinproof.runs.records import Certificate
from work_settings import CERTIFICATES

NORMS = ("l1", "l2", "linf")
DIMENSION, LEVELS, CLAIMS = 10, 255, 4
BUDGET = replace(small.QUICK, steps=10, rounds=4, directions=3, votes=3000)
DIRECTION = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(8))


def inputs(offset: float) -> Tensor:
    """Stored inputs in the middle of the range whose distance to the boundary is neither tiny nor out of reach."""
    stored = torch.randint(70, 186, (200, DIMENSION), generator=torch.Generator().manual_seed(9))
    margin = (stored.double() / LEVELS) @ DIRECTION.double() - offset
    return stored[(margin.abs() > 0.3) & (margin.abs() < 0.6)][:CLAIMS]


OFFSET = float(DIRECTION.sum()) / 2
STORED = inputs(OFFSET)


def exact_distance(norm: str) -> NDArray[np.float64]:
    """To the boundary: margin / |w|_2, margin / |w|_1, and for l1 coordinate after coordinate, as far as the range goes."""
    weight = DIRECTION.double().numpy()
    points = STORED.double().numpy() / LEVELS
    margins = points @ weight - OFFSET
    if norm != "l1":
        return np.asarray(np.abs(margins) / np.linalg.norm(weight, ord=2 if norm == "l2" else 1))
    found = []
    for point, margin in zip(points, margins, strict=True):
        away, left = 0.0, abs(margin)
        for place in np.argsort(-np.abs(weight)):
            upwards = (weight[place] > 0) != (margin > 0)
            step = min(1 - point[place] if upwards else point[place], left / abs(weight[place]))
            away, left = away + step, left - step * abs(weight[place])
        assert left < 1e-9
        found.append(away)
    return np.array(found)


def layered(law: Law) -> nn.Module:
    """The same half-space behind an invertible layer with unequal noise in it."""
    first = nn.Linear(DIMENSION, DIMENSION)
    second = small.half_space(DIRECTION, OFFSET)
    head = second.get_submodule("0")
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        nn.init.orthogonal_(first.weight, generator=torch.Generator().manual_seed(2))
        first.bias.zero_()
        head.weight.copy_(head.weight @ first.weight.T)
    scales = np.linspace(0.8, 1.2, DIMENSION)
    scales *= np.sqrt(DIMENSION / (scales**2).sum())
    network = add_noise(
        nn.Sequential(first, head),
        (DIMENSION,),
        Place.FIRST_LAYER,
        lambda shape: NoiseLayer(shape, law, 0.2, FixedSpread(shape, scales)),
    )
    return network.eval()


def attacked(smoothed: SmoothedClassifier, norm: str, radii: NDArray[np.float64]) -> list[AttackedCertificate]:
    certified = ((STORED.double() / LEVELS) @ DIRECTION.double() > OFFSET).long().tolist()
    claims = [
        Certificate(index, UNKNOWN, answer, 0, answer, float(radius))
        for index, (answer, radius) in enumerate(zip(certified, radii, strict=True))
    ]
    means = torch.stack((torch.full((DIMENSION,), 0.4), torch.full((DIMENSION,), 0.6)))
    smoothed = replace(smoothed, base=smoothed.base_for(STORED[:1], Sampling(), form="as given"))
    return CertificateAttacker(smoothed, norm, means, len(claims), BUDGET, small.AUDIT_KEY).attack(STORED, claims)


UNKNOWN = -2
CLASSIFIERS: dict[str, Any] = {
    "input": lambda norm: smooth(small.half_space(DIRECTION, OFFSET), 0.2, method=Method(norm=norm)),
    "input, scores": lambda norm: smooth(
        small.half_space(5 * DIRECTION, 5 * OFFSET), 0.2, method=Method(norm=norm, statistic="scores", confidence="hoeffding")
    ),
    "first layer": lambda norm: smooth(layered(Law.GAUSSIAN), method=Method(norm=norm), input_shape=(DIMENSION,)),
    "first layer, laplace": lambda norm: smooth(layered(Law.LAPLACE), method=Method(norm=norm), input_shape=(DIMENSION,)),
}
CASES = [("input", norm) for norm in NORMS] + [("input, scores", "l2"), ("first layer", "linf"), ("first layer, laplace", "l1")]


@pytest.mark.parametrize(("kind", "norm"), CASES)
def test_doubled_radii_of_a_half_space_are_flipped_and_true_ones_hold(kind: str, norm: str) -> None:
    smoothed, exact = CLASSIFIERS[kind](norm), exact_distance(norm)
    assert len(exact) == CLAIMS
    for one in attacked(smoothed, norm, 0.98 * exact):
        assert one.verdict != FLIPPED
        # One level of the range is up to 4 % of these distances in linf.
        assert one.flip is None or one.flip.distance >= exact[one.index] * (1 - 1e-9)
    found = attacked(smoothed, norm, 2 * exact)
    assert [one.verdict for one in found] == [FLIPPED] * CLAIMS, "the planted bug"
    for one in found:
        assert one.flip is not None
        assert one.flip.stored is not None
        check_flip(one, norm, exact[one.index])


def check_flip(one: AttackedCertificate, norm: str, exact: float) -> None:
    """The flip itself, measured on Python's integers: storable, as far away as it says, inside the claim, behind the truth."""
    assert one.flip is not None
    assert one.flip.stored is not None
    moves = [abs(a - b) for a, b in zip(one.flip.stored, STORED[one.index].tolist(), strict=True)]
    squares = sum(move**2 for move in moves)
    length = {"l1": float(sum(moves)), "l2": squares**0.5, "linf": float(max(moves))}[norm]
    assert all(0 <= level <= LEVELS for level in one.flip.stored)
    assert one.flip.distance == pytest.approx(length / LEVELS, rel=1e-12)
    if norm != "l2":
        assert one.flip.distance == length / LEVELS, "whole levels, divided once"
    assert exact * (1 - 1e-9) <= one.flip.distance < one.radius


def test_a_planted_l2_measure_misses_what_linf_finds() -> None:
    """Radii of linf attacked as if they were l2: balls so small that lies go unnoticed."""
    exact = exact_distance("linf")
    found = attacked(CLASSIFIERS["input"]("l2"), "l2", 2 * exact)
    assert not any(one.verdict == FLIPPED for one in found)


@pytest.mark.parametrize(
    ("statistic", "confidence", "wanted"),
    [
        ("votes", "clopper-pearson", "clopper-pearson"),
        ("votes", "hoeffding", "clopper-pearson"),
        ("scores", "hoeffding", "hoeffding"),
        ("scores", "empirical-bernstein", "hoeffding"),
    ],
)
def test_certificates_are_judged_by_their_own_statistic(statistic: str, confidence: str, wanted: str) -> None:
    made = Method(norm="linf", bound="published", statistic=statistic, confidence=confidence, runner_up="union")
    settings = replace(CERTIFICATES, method=made)
    method = judging_method(settings)
    assert method == Method(norm="linf", statistic=statistic, confidence=wanted), "tight, complement"
