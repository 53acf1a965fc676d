"""Laplace noise: the exact reach in linf between two discretisations, the Gaussian one below, and planted errors that show."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from bounds_oracles import ALPHA, INPUTS, EqualLaplaceShifts, few
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from torch import nn

from twinproof.certification import laplace_shifts
from twinproof.certification.bounds import BestLaplace, RobustnessBound, TightLaplace
from twinproof.certification.confidence import Evidence
from twinproof.certification.laplace_shifts import EqualShifts, GaussianShift
from twinproof.certification.method import Method
from twinproof.certification.radius import RadiusRule
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError
from twinproof.layers.noise import Law, NoiseLayer, UniformSpread

DIMENSIONS = (1, 2, 5, 16, 64, 784)
TOP = (0.501, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.977, 0.99, 0.9993, 0.99993)
# With the scores of all other classes bounded by 1 - low, and by something less than that.
SETTINGS = [(d, low, share * (1 - low)) for d in DIMENSIONS for low in TOP for share in (1.0, 0.3)]
SCALE = 0.35


def _is_exact(reach: Callable[[int, float, float], float], dimension: int, low: float, high: float) -> bool:
    """Never above, and less than 1e-6 below a number that is above the exact radius, with noise of scale 0.35."""
    oracle, found = EqualLaplaceShifts(dimension), reach(dimension, low, high)
    return oracle.lead(found + 1e-6 / SCALE, low, high) < 0 <= oracle.lead(found, low, high)


def _reach(dimension: int, low: float, high: float) -> float:
    return float(EqualShifts(dimension).reach(low, high))


def test_a_hundred_settings_and_more() -> None:
    assert len(SETTINGS) > 100


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_linf_at_the_input_is_exact_to_a_millionth_from_below(dimension: int) -> None:
    for each, low, high in SETTINGS:
        assert each != dimension or _is_exact(_reach, dimension, low, high), (low, high)


def test_on_a_line_the_oracle_is_the_closed_form() -> None:
    """-ln(2 (1 - low)) where only the complement bounds the others."""
    for low in TOP:
        exact = -math.log(2 * (1 - low))
        assert (
            EqualLaplaceShifts(1).lead(exact - 1e-9, low, 1 - low) >= 0 > EqualLaplaceShifts(1).lead(exact + 1e-7, low, 1 - low)
        )


def _spread_to_the_left(size: float, pieces: int) -> np.ndarray:
    made = HONEST_SPREAD(size, pieces)
    inside = made[1:-1].copy()
    made[1:-1] = 0
    made[:-2] += inside
    return made


HONEST_SPREAD = laplace_shifts._spread


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], Callable[[int, float, float], float]]] = {
    "one coordinate in a hundred forgotten": lambda _: lambda d, low, high: _reach(d - max(1, d // 100), low, high),
    "the l1 length": lambda _: lambda d, low, high: float(TightLaplace().reach(low, high)) / d,
    "a normal law of the same variance": lambda _: lambda d, low, high: float(ndtri(low) - ndtri(high)) / math.sqrt(2 * d),
    "losses rounded down": lambda patch: (patch.setattr(laplace_shifts, "_spread", _spread_to_the_left), _reach)[1],
    "scores of the others halved": lambda _: lambda d, low, high: _reach(d, low, high / 2),
    "a part in ten thousand more": lambda _: lambda d, low, high: _reach(d, low, high) * (1 + 1e-4),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_reaches_are_caught(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laplace_shifts._Table.at.cache_clear()
    reach = PLANTED[planted](monkeypatch)
    found = [_is_exact(reach, dimension, low, 1 - low) for dimension in (2, 64) for low in (0.7, 0.977)]
    laplace_shifts._Table.at.cache_clear()
    assert not any(found)


def test_it_grows_with_low_and_falls_with_high_and_ends_somewhere() -> None:
    bound = EqualShifts(64)
    assert (np.diff(bound.reach(np.linspace(0.501, 0.9999, 60), 0.1)) > 0).sum() == 60 - 1
    assert (np.diff(bound.reach(0.7, np.linspace(0.0, 0.69, 60))) < 0).all()
    assert float(bound.reach(0.5, 0.5)) == float(bound.reach(0.4, 0.6)) == 0.0
    assert float(bound.reach(1.0, 0.0)) == pytest.approx(12 / 8, abs=2e-3)
    for dimension in (0, 2**16 + 1):
        with pytest.raises(ConfigError, match="dimension"):
            EqualShifts(dimension)


def laplace_trade_off(shift: float, error: np.ndarray) -> np.ndarray:
    """The three pieces of one coordinate."""
    least = math.exp(-shift) / 2
    middle = np.exp(-shift) / (4 * error)
    return np.where(error < least, 1 - math.exp(shift) * error, np.where(error <= 0.5, middle, math.exp(-shift) * (1 - error)))


def _is_never_above_one_coordinate(constant: float) -> bool:
    errors = np.concatenate([np.logspace(-12, -1, 300), np.linspace(0.1, 1, 901)[1:-1]])
    return all(
        (laplace_trade_off(shift, errors) >= ndtr(ndtri(1 - errors) - constant * shift) - 1e-12).all()
        for shift in np.logspace(-4, 1, 200)
    )


def test_one_coordinate_is_at_worst_gaussian() -> None:
    assert _is_never_above_one_coordinate(math.sqrt(math.pi / 2))
    assert not _is_never_above_one_coordinate(1.25), "no smaller constant will do"


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_gaussian_reach_is_never_above_the_exact_one(dimension: int) -> None:
    for each, low, high in SETTINGS:
        if each == dimension:
            gaussian = float(GaussianShift().reach(low, high)) / math.sqrt(dimension)
            assert EqualLaplaceShifts(dimension).lead(gaussian, low, high) > 0
            assert dimension < 64 or gaussian > 0.7 * _reach(dimension, low, high)


def test_the_numbers_of_the_docs() -> None:
    """b = 0.35 on 784 pixels: pure epsilon, Gaussian, exact."""
    for low, pure, gaussian, exact in ((0.9, 72, 1278, 1614), (0.977, 137, 1990, 2524), (0.9993, 293, 3186, 4070)):
        pair = (low, 1 - low)
        found = (
            float(TightLaplace().reach(*pair)) / 784,
            float(GaussianShift().reach(*pair)) / 28,
            _reach(784, *pair),
        )
        assert [0.35 * one for one in found] == pytest.approx([pure * 1e-5, gaussian * 1e-5, exact * 1e-5], abs=5.1e-6)


def _rule(norm: str, bound: str = "best", shape: tuple[int, ...] = (1, 8, 8)) -> RadiusRule:
    noise = NoiseLayer(shape, Law.LAPLACE, 0.35, UniformSpread(shape))
    network = nn.Sequential(noise, nn.Flatten(), nn.Linear(math.prod(shape), 3))
    return smooth(network, method=Method(norm=norm, bound=bound)).radius_rule(shape, 3)


VOTES = Evidence.of_votes(1000, np.arange(500, 1001, dtype=np.int64))


def test_the_best_bound_takes_the_longest_of_three() -> None:
    for norm, dimensions in (("l1", (1.0, 1.0)), ("l2", (8.0, 1.0)), ("linf", (64.0, 8.0))):
        rule = _rule(norm)
        assert isinstance(rule.bound, BestLaplace)
        names: list[RobustnessBound] = [bound for bound, _ in rule.others]
        assert [type(one) for one in names] == [GaussianShift, EqualShifts][: 2 if norm == "linf" else 1]
        assert (rule.operator_norm, rule.others[0][1].operator_norm) == pytest.approx(dimensions, rel=1e-12)
        best, pure = (one.certified(VOTES, 0.001) for one in (rule, _rule(norm, "pure-epsilon")))
        assert np.array_equal(best.certified, pure.certified)
        assert (best.radii >= pure.radii).all()
        assert norm == "l1" or (best.radii > 2 * pure.radii)[best.certified].any()


def test_in_l1_at_the_input_the_best_is_the_tight_one() -> None:
    best, tight = (_rule("l1", bound).certified(VOTES, 0.001).radii for bound in ("best", "tight"))
    assert np.array_equal(best, tight)
    low = brentq(lambda share: -math.log(2 * (1 - share)) - 1.0, 0.5, 0.99)
    assert float(TightLaplace().reach(low, 1 - low)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("dimension", [2, 64])
def test_on_its_own_extremal_classifier_it_fails_as_often_as_it_may(dimension: int) -> None:
    """The test of likelihood ratios for all coordinates moved by ``size``: votes are binomial, and the radius is known."""
    size, draws = 1.0 / math.sqrt(dimension), 1000
    low = brentq(lambda share: EqualLaplaceShifts(dimension).lead(size, share, 1 - share), 0.51, 0.999, xtol=1e-7)
    votes = np.random.default_rng(3).binomial(draws, low, INPUTS)
    rule = RadiusRule(BestLaplace(), 2, 1.0, 0.0, Method(norm="linf"), dimension, others=((EqualShifts(dimension), UNIT),))
    radii = rule.certified(Evidence.of_votes(draws, votes.astype(np.int64)), ALPHA).radii
    assert few(int((radii > size).sum()))
    assert not few(int((radii * 1.02 > size).sum()))


UNIT = _rule("linf").others[1][1]
