"""Interval bounds of the verifier against exact fractions, and planted bugs; no network is built."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from twinproof_verify import interval
from twinproof_verify.interval import RELU, Network, Sums
from twinproof_verify.layers import Array

LEVELS = 255


def _network(seed: int) -> Network:
    """Two dense layers of weights that float32 holds."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(2, 6, size=3)]
    layers = [
        Sums(rng.normal(size=(n_out, n_in)).astype(np.float32).astype(np.float64), _column(rng, n_out), n_in)
        for n_in, n_out in ((sizes[0], sizes[1]), (sizes[1], sizes[2]))
    ]
    return Network((layers[0], RELU), layers[1], LEVELS)


def _column(rng: np.random.Generator, size: int) -> Array:
    return np.asarray(rng.normal(size=(size, 1)).astype(np.float32), dtype=np.float64)


def _exact_margin(network: Network, stored: list[int], size: Fraction, answer: int) -> Fraction:
    """The smallest bound on a difference of outputs, in fractions."""
    first = network.layers[0]
    assert not isinstance(first, str)
    low = [max(Fraction(0), Fraction(k, LEVELS) - size) for k in stored]
    high = [min(Fraction(1), Fraction(k, LEVELS) + size) for k in stored]
    ends = []
    for row, bias in zip(np.asarray(first.matrix), first.bias[:, 0], strict=True):
        weights = [Fraction(float(one)) for one in row]
        pairs = [
            sum((w * (x if (w > 0) == least else y) for w, x, y in zip(weights, low, high, strict=True)), Fraction(float(bias)))
            for least in (True, False)
        ]
        ends.append([max(Fraction(0), one) for one in pairs])
    rows, margins = np.asarray(network.last.matrix), []
    for other in set(range(len(rows))) - {answer}:
        found = Fraction(float(network.last.bias[answer, 0])) - Fraction(float(network.last.bias[other, 0]))
        for own, theirs, (least, most) in zip(rows[answer], rows[other], ends, strict=True):
            difference = Fraction(float(own)) - Fraction(float(theirs))
            found += difference * (least if difference > 0 else most)
        margins.append(found)
    return min(margins)


def _unsound(seeds: range) -> int:
    """Radii, found by trying, that hold here and not in exact arithmetic without any rounding of the network."""
    wrong = 0
    for seed in seeds:
        network = _network(seed)
        rng = np.random.default_rng([seed, 1])
        stored = rng.integers(0, LEVELS + 1, size=(1, np.asarray(network.layers[0].matrix).shape[1]))  # type: ignore[union-attr]
        for answer in range(network.classes):
            low, high = 0.0, 1.0
            for _ in range(60):  # as near to the edge as float64 can tell
                middle = (low + high) / 2
                held = bool(network.holds(stored, np.array([answer]), np.array([middle]))[0])
                low, high = (middle, high) if held else (low, middle)
            if low:
                wrong += not _exact_margin(network, stored[0].tolist(), Fraction(low), answer) > 0
    return wrong


def _only_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "INPUT_SHARE", 2.0**-50)
    monkeypatch.setattr(Sums, "share", property(lambda layer: interval.roundings(4 * layer.terms + 32, interval.FLOAT64)))


def test_what_holds_holds_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _unsound(range(100)) == 0
    _only_float64(monkeypatch)
    assert _unsound(range(150)) == 0


def test_a_planted_loss_of_outward_rounding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "INPUT_SHARE", 0.0)
    monkeypatch.setattr(interval, "FLUSHED", 0.0)
    monkeypatch.setattr(Sums, "share", 0.0)
    assert _unsound(range(150)) > 5


def test_planted_wrong_ends_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = interval._signs
    monkeypatch.setattr(interval, "_signs", lambda matrix: signs(matrix)[::-1])
    assert _unsound(range(60)) > 5


def test_the_networks_rounding_is_paid_for() -> None:
    """4096 (x_1 - x_2 + ...) + .001 against 0: exactly above it, but not in float32 with sums in any order."""
    weights = np.stack([4096.0 * np.resize([1.0, -1.0], 64), np.zeros(64)])
    network = Network((), Sums(weights, np.array([[1e-3], [0.0]]), 64), LEVELS)
    stored, answer, size = np.full((1, 64), 77), np.array([0]), np.zeros(1)
    assert not network.holds(stored, answer, size)[0]
    larger = Network((), Sums(weights, np.array([[0.2], [0.0]]), 64), LEVELS)
    assert not larger.holds(stored, answer, size)[0]
    enough = Network((), Sums(weights, np.array([[1.0], [0.0]]), 64), LEVELS)
    assert enough.holds(stored, answer, size)[0]


def test_what_may_overflow_is_not_decided() -> None:
    first = Sums(np.full((2, 2), 1e38), np.zeros((2, 1)), 2)
    network = Network((first, RELU), Sums(np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[1.0], [0.0]]), 2), LEVELS)
    stored, answer = np.full((1, 2), 200), np.array([0])
    assert not network.holds(stored, answer, np.zeros(1))[0]
    assert not network.excludes(stored, np.array([1]))[0]
