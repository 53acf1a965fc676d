"""The redistribution vector: what it may be, how it is read, and the whitened lengths that promises rest on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinproof.errors import ConfigError, DataError, UserError
from twinproof.privacy.redistribution import Redistribution, parse_redistribution

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


def test_an_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        Redistribution((0.5, 0.0, 0.5))
    assert (caught.value.where, caught.value.got) == ("r, entry 1", "0.0")
    assert "small share" in caught.value.fix


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


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [1.0, -1.0], [1.0, 0.0], [1.0, math.inf], [math.nan]])
def test_weights_without_meaning_are_refused(bad: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"share"):
        Redistribution.from_weights(bad)


@PROPERTY
@given(values=weights)
def test_weights_become_shares(values: list[float]) -> None:
    r = Redistribution.from_weights(values)
    assert math.fsum(r.shares) == pytest.approx(1, abs=1e-12)
    assert r.shares[0] * sum(values) == pytest.approx(values[0])
    assert float((r.scales() ** 2).sum()) == pytest.approx(len(values))


def test_the_whitened_norm_by_hand() -> None:
    r = Redistribution((0.5, 0.125, 0.375))  # K r = 1.5, 0.375, 1.125
    exact = math.sqrt(9 / 1.5 + 4 / 0.375 + 1 / 1.125)
    assert r.whitened_norm([3.0, -2.0, 1.0]) == pytest.approx(exact, rel=1e-12)
    assert r.whitened_norm([3.0, -2.0, 1.0]) >= exact
    assert r.whitened_norm([1e-200, 0.0, 0.0]) > 0  # squares would underflow
    assert Redistribution.uniform(9).whitened_norm([2.0, *[0.0] * 8]) == pytest.approx(2.0)


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


@pytest.mark.parametrize("text", ["0.2,0.3,0.5", "[0.2, 0.3, 0.5]", "0.2 0.3\n0.5\n", "2e-1;3e-1;5e-1"])
def test_numbers_and_files_of_numbers_are_read(tmp_path: Path, text: str) -> None:
    assert parse_redistribution(text).shares == (0.2, 0.3, 0.5)
    (tmp_path / "r.txt").write_text(text)
    assert parse_redistribution(str(tmp_path / "r.txt")).shares == (0.2, 0.3, 0.5)


def test_arrays_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", np.array([[0.25], [0.75]]))
    assert parse_redistribution(str(tmp_path / "r.npy")).shares == (0.25, 0.75)


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


@pytest.mark.parametrize("text", ["", ",", "0.5,0.4", "nan,1", "0,1"])
def test_texts_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_redistribution(text)
