"""Redistributed noise: the promise is checked on the heterogeneous densities themselves, never on sigma alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import Array, exact_gaussian_delta, hockey_stick, normal_log_density

from twinproof.errors import ConfigError, DataError, UserError
from twinproof.privacy.mechanisms import GaussianNoise, calibrate
from twinproof.privacy.redistribution import Redistribution, parse_redistribution

KINDS = {"heterogeneous": "extended", "heterogeneous-analytic": "analytic"}
ANALYTIC = "heterogeneous-analytic"
Deviations = Callable[[GaussianNoise], Array]


def redistributed(kind: str, epsilon: float, delta: float, sensitivity: float, r: Redistribution) -> GaussianNoise:
    made = calibrate(kind, epsilon, delta, sensitivity, r)
    assert isinstance(made, GaussianNoise)
    assert made.redistribution is r
    return made


def shares_of(mechanism: GaussianNoise) -> Array:
    assert mechanism.redistribution is not None
    return np.asarray(mechanism.redistribution.shares)


def one_percent_less(mechanism: GaussianNoise) -> Array:
    return 0.99 * mechanism.deviations()


def root_forgotten(mechanism: GaussianNoise) -> Array:
    return mechanism.sigma * shares_of(mechanism).size * shares_of(mechanism)


def not_normalised(mechanism: GaussianNoise) -> Array:
    return mechanism.sigma * np.sqrt(shares_of(mechanism))  # the shares' K forgotten


def reversed_shares(mechanism: GaussianNoise) -> Array:
    return mechanism.deviations()[::-1]


def changes(redistribution: Redistribution, length: float, generator: np.random.Generator) -> list[Array]:
    """Changes of the outputs of that whitened length: along each of the extreme outputs, and in random directions."""
    scales, K = redistribution.scales(), redistribution.dimension
    directions = [np.eye(K)[np.argmin(scales)], np.eye(K)[np.argmax(scales)], *generator.normal(size=(2, K))]
    return [length * direction / np.linalg.norm(direction) * scales for direction in directions]


def broken_promises(kind: str, deviations: Deviations, count: int) -> int:
    """How many of random (epsilon, delta, r, sensitivity) some change breaks, for the noise that is really added.

    A change v under independent noise of deviations d is a shift of length ||v / d|| under unit noise, whose profile is known.
    """
    generator, broken = np.random.default_rng(3), 0
    for _ in range(count):
        r = Redistribution.from_weights(generator.lognormal(0, 1.5, size=generator.integers(2, 40)))
        epsilon, delta, sensitivity = (
            10 ** generator.uniform(-2, 2),
            10 ** generator.uniform(-12, -0.01),
            10 ** generator.uniform(-2, 2),
        )
        added = deviations(redistributed(kind, epsilon, delta, sensitivity, r))
        lengths = [float(np.linalg.norm(change / added)) for change in changes(r, sensitivity, generator)]
        # The changes have their length up to rounding, which the profile must not be blamed for.
        broken += exact_gaussian_delta(epsilon, 1 / (max(lengths) * (1 - 1e-14))) > delta
    return broken


@pytest.mark.parametrize("kind", KINDS)
def test_every_calibration_keeps_its_promise_on_random_targets(kind: str) -> None:
    assert broken_promises(kind, GaussianNoise.deviations, 2000) == 0


def test_planted_bugs_are_caught() -> None:
    for bug in (one_percent_less, root_forgotten, not_normalised, reversed_shares):
        assert broken_promises(ANALYTIC, bug, 100) >= 95, bug.__name__
    assert broken_promises(ANALYTIC, lambda mechanism: 0.999 * mechanism.deviations(), 200) == 200


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.8), (0.03, 0.97)])
@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.0, 1.0), (0.6, -0.8)])
def test_the_integral_of_the_densities_is_the_profile(shares: tuple[float, float], direction: tuple[float, float]) -> None:
    """No whitening in the oracle: p and q are the laws of the outputs as they leave."""
    epsilon, delta, sensitivity = 1.0, 0.01, 2.0
    r = Redistribution(shares)
    mechanism, scales = redistributed(ANALYTIC, epsilon, delta, sensitivity, r), r.scales()
    change = (sensitivity * direction[0] * scales[0], sensitivity * direction[1] * scales[1])
    assert r.whitened_norm(change) == pytest.approx(sensitivity, rel=1e-12)

    def integral(deviations: Array) -> float:
        return hockey_stick(normal_log_density, (float(deviations[0]), float(deviations[1])), change, epsilon)

    assert integral(mechanism.deviations()) == pytest.approx(delta, rel=1e-3)
    assert integral(0.99 * mechanism.deviations()) > delta * 1.01
    if shares[0] != shares[1] and direction[1] == 0:
        assert integral(root_forgotten(mechanism)) > delta * 1.5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(min_value=1e-2, max_value=100),
    exponent=st.floats(min_value=-12, max_value=-0.01),
    dimension=st.integers(min_value=1, max_value=300),
)
def test_equal_shares_are_the_plain_mechanism(epsilon: float, exponent: float, dimension: int) -> None:
    delta, r = 10.0**exponent, Redistribution.uniform(dimension)
    for heterogeneous, plain in KINDS.items():
        found, wanted = redistributed(heterogeneous, epsilon, delta, 3.0, r), calibrate(plain, epsilon, delta, 3.0)
        assert found.sigma == wanted.sigma
        assert found.deviations() == pytest.approx(np.full(dimension, wanted.sigma), rel=1e-12)
        assert (found.delta_at(epsilon), found.epsilon_at(delta)) == (wanted.delta_at(epsilon), wanted.epsilon_at(delta))


def test_redistribution_keeps_the_total_and_the_analytic_one_needs_less() -> None:
    r = Redistribution.from_weights([1.0, 5.0, 0.2, 3.0])
    paper, ours = (redistributed(kind, 2.0, 1e-5, 1.0, r) for kind in KINDS)
    assert float((paper.deviations() ** 2).sum()) == pytest.approx(4 * paper.sigma**2)
    assert ours.sigma / paper.sigma == pytest.approx(1.993812446 / 2.476565548, rel=1e-8)
    assert (ours.deviations() < paper.deviations()).all()


def test_deviations_are_not_below_the_real_numbers() -> None:
    mp = pytest.importorskip("mpmath")
    r = Redistribution.from_weights(np.random.default_rng(1).uniform(0.01, 1, size=200))
    mechanism = redistributed("heterogeneous", 0.7, 1e-6, 1.0, r)
    with mp.workdps(40):
        exact = [mp.mpf(mechanism.sigma) * mp.sqrt(200 * mp.mpf(share)) for share in r.shares]
        assert all(mp.mpf(found) >= wanted for found, wanted in zip(mechanism.deviations().tolist(), exact, strict=True))


weights = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=30)
PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.5, 0.0, 0.5), "entry 1"),
        ((-0.5, 1.5), "entry 0"),
        ((0.5, math.nan), "entry 1"),
        ((math.inf,), "entry 0"),
        ((0.5, 0.4), "do not add up to 1"),
        ((0.5, 0.50001), "do not add up to 1"),
        ((1.0, 1.0), "do not add up to 1"),
        ((), "do not add up to 1"),
    ],
)
def test_what_is_no_redistribution_is_refused(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Redistribution(shares)


def test_shares_stored_as_float32_are_accepted() -> None:
    values = np.random.default_rng(0).uniform(0.1, 1, size=25_088)
    assert Redistribution(tuple((values / values.sum()).astype(np.float32).tolist())).dimension == 25_088


def test_lengths_and_dimensions_must_fit() -> None:
    r = Redistribution((0.25, 0.75))
    with pytest.raises(ConfigError, match="wrong length"):
        r.check_dimension(3)
    with pytest.raises(ConfigError, match="wrong length"):
        r.whitened_norm([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="not finite"):
        r.whitened_norm([1.0, math.inf])
    with pytest.raises(ConfigError, match="dimension cannot be used"):
        Redistribution.uniform(0)
    bad_weights: list[list[float]] = [[], [0.0, 0.0], [1.0, -1.0], [1.0, 0.0], [1.0, math.inf], [math.nan]]
    for bad in bad_weights:
        with pytest.raises(ConfigError, match=r"share"):
            Redistribution.from_weights(bad)


@PROPERTY
@given(values=weights, seed=st.integers(min_value=0, max_value=1000))
def test_the_bound_from_a_plain_sensitivity_holds_and_is_reached(values: list[float], seed: int) -> None:
    r = Redistribution.from_weights(values)
    direction = np.random.default_rng(seed).normal(size=len(values))
    direction *= 2.5 / np.linalg.norm(direction)
    bound = r.whitened_sensitivity(2.5)
    assert r.whitened_norm(direction) <= bound * (1 + 1e-12)
    worst = np.zeros(len(values))
    worst[int(np.argmin(r.shares))] = 2.5
    assert r.whitened_norm(worst) == pytest.approx(bound, rel=1e-12)
    assert r.covered_l2_sensitivity(bound) == pytest.approx(2.5, rel=1e-12)
    assert r.whitened_sensitivity(r.covered_l2_sensitivity(1.0)) >= 1 - 1e-13


def test_numbers_and_files_of_numbers_are_read(tmp_path: Path) -> None:
    for text in ("0.2,0.3,0.5", "[0.2, 0.3, 0.5]", "0.2 0.3\n0.5\n", "2e-1;3e-1;5e-1"):
        assert parse_redistribution(text).shares == (0.2, 0.3, 0.5)
        (tmp_path / "r.txt").write_text(text)
        assert parse_redistribution(tmp_path / "r.txt").shares == (0.2, 0.3, 0.5)
    np.save(tmp_path / "r.npy", np.array([[0.25], [0.75]]))
    assert parse_redistribution(str(tmp_path / "r.npy")).shares == (0.25, 0.75)
    for text in ("", ",", "0.5,0.4", "nan,1", "0,1"):
        with pytest.raises(UserError):
            parse_redistribution(text)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "words.txt").write_text("one half, one half")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.npy").write_bytes(b"0.5 0.5")
    for name in ("objects.npy", "words.txt", "empty.txt", "binary.txt", "broken.npy", "missing.txt", "."):
        with pytest.raises(DataError, match="the redistribution vector cannot be read") as caught:
            parse_redistribution(str(tmp_path / name))
        assert "--r 0.2,0.3,0.5" in caught.value.fix
