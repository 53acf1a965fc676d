"""The Laplace mechanism on whole numbers: what it costs, exactly; that its event covers it; and that noise serves once."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.privacy import discrete_laplace as grid_laplace
from twinproof.privacy.discrete_laplace import LARGEST_SUM, GridLaplace
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.mechanisms import laplace_delta

KEY = Key.from_seed(6)


def discrete_delta(epsilon: float, scale: int, moves: tuple[int, ...]) -> float:
    """The smallest delta of discrete Laplace noise for those moves, summed over every answer that matters."""
    q, reach = math.exp(-1 / scale), 40 * scale + max(moves)
    values = np.arange(-reach, reach + 1)
    here = there = np.ones(1)
    for move in moves:
        own, other = ((1 - q) / (1 + q) * q ** np.abs(values - centre) for centre in (0, move))
        here, there = np.outer(here, own).ravel(), np.outer(there, other).ravel()
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


MOVES = [(5, (7,)), (3, (1,)), (1, (2,)), (2, (1, 3)), (2, (2, 2))]
EPSILONS = np.linspace(0, 2.6, 40)


@pytest.mark.parametrize(("scale", "moves"), MOVES)
def test_two_steps_for_each_number_cover_the_discrete_profile(scale: int, moves: tuple[int, ...]) -> None:
    covered = sum(moves) + 2 * len(moves)
    for epsilon in EPSILONS:
        assert discrete_delta(epsilon, scale, moves) <= laplace_delta(epsilon, scale, covered) + 1e-12


def test_planted_profile_without_the_two_steps_is_exceeded() -> None:
    """The continuous law of the same scale is not quite the discrete one's: it has no mass at the largest loss but one half."""
    assert any(discrete_delta(one, 5, (7,)) > laplace_delta(one, 5, 7) * 1.01 for one in EPSILONS)
    assert discrete_delta(7 / 5, 5, (7,)) == pytest.approx(0, abs=1e-12), "though it is as pure"


@pytest.mark.parametrize("sensitivity", [1, 1000, 2**30 + 1])
@pytest.mark.parametrize("multiplier", [0.1, 1.0, 1 / 3, 1000.0])
def test_the_scale_keeps_pure_epsilon_in_exact_arithmetic(sensitivity: int, multiplier: float) -> None:
    mechanism = GridLaplace(sensitivity, 3, multiplier)
    assert Fraction(sensitivity, mechanism.scale) <= 1 / Fraction(multiplier)
    assert Fraction(mechanism.scale - 1) < Fraction(multiplier) * (sensitivity + 6), "and is no larger than it must be"
    assert mechanism.event.noise_multiplier == multiplier


def test_a_release_is_the_sum_plus_its_own_noise(tmp_path: Path) -> None:
    mechanism, sums = GridLaplace(100, 1, 2.0), np.arange(12, dtype=np.int64).reshape(3, 4) * 1000
    ledger = Ledger.create(tmp_path / "ledger", config_sha256="0" * 64, delta=1e-5)
    first, second = mechanism.announce(ledger, "one"), mechanism.announce(ledger, "two")
    noise = [announced.release(sums, KEY) - sums for announced in (first, second)]
    assert noise[0].shape == (3, 4)
    assert (noise[0] != noise[1]).any(), "each line has noise of its own"
    assert len(np.unique(noise[0])) > 9, "and each number"
    assert [entry.body for entry in ledger.entries[1:]] == [
        {"noise_multiplier": 2.0, "purpose": name} for name in ("one", "two")
    ]
    with pytest.raises(ConfigError, match="used twice"):
        first.release(sums, KEY)


def test_nothing_is_released_that_is_not_in_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", config_sha256="0" * 64, delta=1e-5)
    ledger.append("close", {"steps": 0, "model_sha256": "0" * 64, "epsilon": None, "epsilon_rdp": None})
    with pytest.raises(RunError, match="cannot be added"):
        GridLaplace(1, 1, 1.0).announce(ledger, "late")


@pytest.mark.parametrize("noise", [2**62, -(2**62)])
def test_noise_beyond_the_cut_gives_the_same_answer_for_all_sums(monkeypatch: pytest.MonkeyPatch, noise: int) -> None:
    def drawn(*names: object, scale: int, count: int) -> NDArray[np.int64]:
        return np.full(count, noise, dtype=np.int64)

    monkeypatch.setattr(grid_laplace, "discrete_laplace", drawn)
    sums = np.array([-LARGEST_SUM, 0, LARGEST_SUM], dtype=np.int64)
    assert set(GridLaplace(1, 1, 1.0).noisy(sums, KEY, 0).tolist()) == {int(math.copysign(2**61, noise))}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 1, 1.0), "sensitivity cannot"),
        ((1, 0, 1.0), "moved cannot"),
        ((1, 1, 0.0), "noise multiplier cannot"),
        ((2**45, 1, 1e3), "too large for the grid"),
    ],
)
def test_mechanisms_without_meaning_are_refused(settings: tuple[int, int, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GridLaplace(*settings)


def test_sums_beyond_exact_floats_are_refused() -> None:
    with pytest.raises(ConfigError, match="too large"):
        GridLaplace(1, 1, 1.0).noisy(np.array([LARGEST_SUM + 1]), KEY, 0)
