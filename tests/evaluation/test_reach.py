"""What a radius must cover: every pair of norms against the longest change there is, rounded up, with planted bugs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from twinproof.errors import ConfigError
from twinproof.evaluation.certified import reach
from twinproof.guarantee import round_down

ORDERS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
# Of the largest length in the certificate's norm of a change of length 1 in the attack's: the square, as a power of d.
POWERS = {
    ("l1", "l1"): 0, ("l2", "l1"): 1, ("linf", "l1"): 2,
    ("l1", "l2"): 0, ("l2", "l2"): 0, ("linf", "l2"): 1,
    ("l1", "linf"): 0, ("l2", "linf"): 0, ("linf", "linf"): 0,
}  # fmt: skip
PAIRS = sorted(POWERS)
Reach = Callable[[str, float, str, int], float]


@pytest.mark.parametrize("dimension", [1, 2, 64, 784, 3072])
@pytest.mark.parametrize("size", [0.05, 0.1, 0.25, 1.0, 8 / 255])
def test_reach_is_the_longest_change_and_never_less(size: float, dimension: int) -> None:
    for (attack, certificate), power in POWERS.items():
        square = Fraction(repr(size)) ** 2 * dimension**power
        found = Fraction(repr(reach(attack, size, certificate, dimension)))
        assert found**2 >= square
        assert (found - Fraction(1, 10**6)) ** 2 < square, "by less than the last digit of a radius"


def _covers(candidate: Reach, attack: str, certificate: str, dimension: int = 49) -> bool:
    """Whether no change of size 1 is longer than the candidate says: one coordinate, all of them alike, and random ones."""
    changes = np.random.default_rng(0).standard_normal((200, dimension))
    changes = np.concatenate((np.eye(1, dimension), np.ones((1, dimension)), changes))
    changes /= np.linalg.norm(changes, ord=ORDERS[attack], axis=1, keepdims=True)
    longest = float(np.linalg.norm(changes, ord=ORDERS[certificate], axis=1).max())
    return candidate(attack, 1.0, certificate, dimension) >= longest * (1 - 1e-12)


@pytest.mark.parametrize(("attack", "certificate"), PAIRS)
def test_no_change_is_longer(attack: str, certificate: str) -> None:
    assert _covers(reach, attack, certificate)


def _without_factor(attack: str, size: float, certificate: str, dimension: int) -> float:
    """The planted bug: a radius in one norm taken for one in another."""
    return size


def _with_one_root(attack: str, size: float, certificate: str, dimension: int) -> float:
    """Another one: sqrt(d) everywhere, though l1 radii need d against linf attacks."""
    return size if POWERS[attack, certificate] == 0 else size * math.sqrt(dimension)


@pytest.mark.parametrize(
    ("planted", "pairs"),
    [(_without_factor, {("l2", "l1"), ("linf", "l1"), ("linf", "l2")}), (_with_one_root, {("linf", "l1")})],
)
def test_planted_factors_are_caught(planted: Reach, pairs: set[tuple[str, str]]) -> None:
    assert {pair for pair in PAIRS if not _covers(planted, *pair)} == pairs


def test_a_planted_rounding_down_is_caught() -> None:
    """0.1 sqrt(2) = 0.14142135...: rounded down, a change of exactly that length would not be covered."""
    exact = 0.1 * math.sqrt(2)
    assert reach("linf", 0.1, "l2", 2) == 0.141422 >= exact
    assert round_down(exact) < exact


def test_reach_does_not_take_an_l2_radius_for_a_linf_one() -> None:
    assert reach("linf", 0.25, "l2", 64) == 2.0
    assert reach("linf", 0.25, "l1", 64) == 16.0
    assert reach("l2", 0.25, "l1", 64) == 2.0
    assert reach("l1", 0.25, "linf", 64) == 0.25
    assert reach("l2", 0.0, "l2", 64) == 0.0


@pytest.mark.parametrize(("attack", "certificate", "where"), [("l3", "l2", "attack_norm"), ("l2", "l0", "certificate_norm")])
def test_unknown_norms_are_refused(attack: str, certificate: str, where: str) -> None:
    with pytest.raises(ConfigError, match="unknown norm") as refused:
        reach(attack, 0.1, certificate, 4)
    assert refused.value.where == where
