"""What counts as certified (never an abstention, a wrong label, a radius that is too small), and what a radius must cover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.certification.method import CertificateSettings
from twinproof.errors import ConfigError, UserError
from twinproof.evaluation.accuracy import binomial_interval
from twinproof.evaluation.certified import (
    abstained,
    average_certified_radius,
    certified_accuracy,
    certified_curve,
    default_radii,
    radius_at_accuracy,
    radius_name,
    reach,
    smoothed_accuracy,
    summarize,
)
from twinproof.guarantee import round_down
from twinproof.runs.records import ABSTAIN, Certificate
from work_settings import CERTIFICATES, changed

Certificates = Sequence[Certificate]

RIGHT_WIDE = Certificate(index=0, label=1, prediction=1, votes=990, top=1, radius=1.2)
RIGHT_NARROW = Certificate(index=1, label=2, prediction=2, votes=700, top=2, radius=0.2)
WRONG_WIDE = Certificate(index=2, label=0, prediction=1, votes=995, top=1, radius=1.5)
SILENT = Certificate(index=3, label=0, prediction=ABSTAIN, votes=500, top=0, radius=0.0)
SILENT_UNLABELLED = Certificate(index=4, label=ABSTAIN, prediction=ABSTAIN, votes=500, top=0, radius=0.0)
ALL = (RIGHT_WIDE, RIGHT_NARROW, WRONG_WIDE, SILENT)


def settings(largest_radius: float = 1.6) -> CertificateSettings:
    return changed(CERTIFICATES, n=1000, sigma=0.5, inputs=4, largest_radius=largest_radius)


def check_counts(certified: Callable[[Certificates, float], float], radius: Callable[[Certificates], float]) -> None:
    """The oracle, by hand; a rule that counts something else fails here."""
    for at, share in ((0.0, 2 / 4), (0.2, 2 / 4), (0.200001, 1 / 4), (1.2, 1 / 4), (1.3, 0.0)):
        assert certified(ALL, at) == share
    assert certified((SILENT_UNLABELLED, RIGHT_WIDE), 0.0) == 1 / 2
    assert radius(ALL) == pytest.approx((1.2 + 0.2) / 4, abs=1e-6)


def test_only_correct_answers_with_enough_radius_count() -> None:
    check_counts(lambda c, r: certified_accuracy(c, r).value, lambda c: average_certified_radius(c, 1.6).value)


PLANTED: dict[str, tuple[Callable[[Certificates, float], float], Callable[[Certificates], float]]] = {
    "abstentions counted as correct": (
        lambda c, r: sum((x.correct or x.prediction == ABSTAIN) and x.radius >= r for x in c) / len(c),
        lambda c: average_certified_radius(c, 1.6).value,
    ),
    "abstention equal to a missing label": (
        lambda c, r: sum(x.correct and x.radius >= r for x in c) / len(c),
        lambda c: average_certified_radius(c, 1.6).value,
    ),
    "strictly larger radii only": (
        lambda c, r: sum(x.prediction != ABSTAIN and x.correct and x.radius > r for x in c) / len(c),
        lambda c: average_certified_radius(c, 1.6).value,
    ),
    "wrong labels in the average": (
        lambda c, r: certified_accuracy(c, r).value,
        lambda c: sum(x.radius for x in c) / len(c),
    ),
    "average over answered inputs only": (
        lambda c, r: certified_accuracy(c, r).value,
        lambda c: sum(x.radius for x in c if x.correct) / sum(x.prediction != ABSTAIN for x in c),
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_oracle_catches(bug: str) -> None:
    with pytest.raises(AssertionError):
        check_counts(*PLANTED[bug])


def test_smoothed_accuracy_and_abstentions() -> None:
    assert smoothed_accuracy(ALL) == binomial_interval(2, 4) == certified_accuracy(ALL, 0.0)
    assert abstained(ALL) == binomial_interval(1, 4)


def test_curve_never_grows() -> None:
    curve = certified_curve(ALL, [0.0, 0.1, 0.2, 0.3, 1.2, 1.5])
    values = [interval.value for _, interval in curve]
    assert values == sorted(values, reverse=True)
    assert [radius for radius, _ in curve] == [0.0, 0.1, 0.2, 0.3, 1.2, 1.5]


def test_average_certified_radius_is_rounded_down_and_inside_its_interval() -> None:
    thirds = [Certificate(i, 0, 0, 900, 0, radius) for i, radius in enumerate((0.5, 0.5, 1.0))]
    interval = average_certified_radius(thirds, 1.6)
    assert interval.value == 0.666666  # 2 / 3, where rounding to nearest would claim 0.666667
    assert interval.low <= interval.value <= 2 / 3 <= interval.high <= 1.6


def test_average_certified_radius_refuses_an_impossible_radius() -> None:
    with pytest.raises(UserError, match="outside the range"):
        average_certified_radius(ALL, 1.0)


def test_average_certified_radius_where_nothing_can_be_certified() -> None:
    assert average_certified_radius([SILENT], 0.0).high == 0.0


@pytest.mark.parametrize(("share", "radius"), [(0.1, 1.2), (0.25, 1.2), (0.26, 0.2), (0.5, 0.2), (0.51, None), (1.0, None)])
def test_radius_at_accuracy_inverts_the_curve(share: float, radius: float | None) -> None:
    assert radius_at_accuracy(ALL, share) == radius
    if radius is not None:
        assert certified_accuracy(ALL, radius).value >= share
        assert certified_accuracy(ALL, math.nextafter(radius, 2)).value < share


def test_radius_at_accuracy_is_not_fooled_by_binary_fractions() -> None:
    hundred = [Certificate(i, 0, 0, 900, 0, 0.01 * (i + 1)) for i in range(100)]
    assert math.ceil(0.07 * 100) == 8  # what a plain ceiling would ask for
    assert radius_at_accuracy(hundred, 0.07) == hundred[100 - 7].radius


@pytest.mark.parametrize(
    ("largest", "radii"),
    [(0.0, [0.0]), (0.24, [0.0]), (0.25, [0.0, 0.25]), (1.1, [0.0, 0.25, 0.5, 0.75, 1.0]), (-1.0, [0.0])],
)
def test_default_radii(largest: float, radii: list[float]) -> None:
    assert default_radii(largest) == radii


def test_radius_names_are_short_and_distinct() -> None:
    assert [radius_name(radius) for radius in default_radii(1.0)] == ["0", "0.25", "0.5", "0.75", "1"]


def test_summary_has_exactly_the_promised_keys() -> None:
    record = summarize(ALL, settings()).as_dict()
    keys = {"acr", "certified_accuracy", "smoothed_accuracy", "abstained", "n", "alpha", "norm", "intervals", "intervals_over"}
    assert set(record) == keys
    assert set(record["intervals"]) == {"acr", "certified_accuracy", "smoothed_accuracy", "abstained"}
    assert record["certified_accuracy"] == {
        "0": 0.5,
        "0.25": 0.25,
        "0.5": 0.25,
        "0.75": 0.25,
        "1": 0.25,
        "1.25": 0.0,
        "1.5": 0.0,
    }
    assert (record["n"], record["alpha"], record["norm"]) == (1000, 0.001, "l2")
    assert record["abstained"] == 0.25
    assert record["acr"] == record["intervals"]["acr"]["value"]
    assert 0.35 - 1.1e-6 <= record["acr"] <= 0.35


@pytest.mark.parametrize(
    "function", [smoothed_accuracy, abstained, lambda c: certified_accuracy(c, 0.0), lambda c: summarize(c, settings())]
)
def test_no_certificates_is_a_users_mistake(function: Callable[[Certificates], object]) -> None:
    with pytest.raises(UserError, match="no certificates"):
        function([])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_radius_at_accuracy_refuses(share: float) -> None:
    with pytest.raises(UserError, match="share"):
        radius_at_accuracy(ALL, share)


INPUTS, DRAWS, SIGMA, AT = 2000, 100, 0.5, 0.45
BOUNDS = clopper_pearson_lower(np.arange(DRAWS + 1), DRAWS, 0.001)
RADII = np.where(BOUNDS > 0.5, SIGMA * ndtri(np.clip(BOUNDS, 0.5, 1 - 1e-16)), 0.0)


def _with_shared_noise(generator: np.random.Generator, noise: NDArray[np.float64], inputs: int) -> NDArray[np.float64]:
    """Radii of alike inputs, all at about one distance from one half-space, under draws that all of them share."""
    distance = 0.6 + 0.02 * generator.standard_normal(inputs)
    votes = np.searchsorted(np.sort(noise), distance / SIGMA)
    return RADII[votes]


def test_intervals_of_inputs_that_shared_their_noise_hold_given_this_noise_and_say_so() -> None:
    generator, runs = np.random.default_rng(4), 50
    some = np.concatenate([_with_shared_noise(generator, generator.standard_normal(DRAWS), 100) for _ in range(2000)])
    over_noise, given_noise = np.zeros(2), np.zeros(2)
    for _ in range(runs):
        noise = generator.standard_normal(DRAWS)
        given, radii = (_with_shared_noise(generator, noise, inputs) for inputs in (100_000, INPUTS))
        made = [Certificate(index, 1, 1 if radius else ABSTAIN, 90, 1, radius) for index, radius in enumerate(radii.tolist())]
        found = summarize(made, changed(settings(float(RADII[-1])), shared_noise=True), radii=[AT])
        for held, truth in ((over_noise, some), (given_noise, given)):
            values = ((found.certified[0][1], (truth >= AT).mean()), (found.acr, truth.mean()))
            held += [interval.low <= value <= interval.high for interval, value in values]
    assert given_noise.min() >= 0.95 * runs
    assert over_noise.max() < 0.4 * runs, "what the words must not promise"
    shared, own = (summarize(ALL, changed(settings(), shared_noise=shared)).as_dict() for shared in (True, False))
    assert "given the noise that all of them shared" in shared["intervals_over"]
    assert "noise of its own" in own["intervals_over"]
    assert shared["intervals"] == own["intervals"]


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
