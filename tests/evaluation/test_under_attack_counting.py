"""Counting: worst cases by hand, abstentions apart, and crossings that chance explains or does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinproof.errors import DataError
from twinproof.evaluation.accuracy import binomial_interval
from twinproof.evaluation.attack_record import NOBODY, AttackLine
from twinproof.evaluation.attack_results import Outcome, outcome_as_papers, outcome_of_all, scores, worst_outcomes
from twinproof.evaluation.certified import CertifiedLine, Crossing, held_against
from twinproof.runs.records import ABSTAIN, Certificate

RIGHT = AttackLine(0, "adaptive", "smoothed", "pgd", 0.5, 3, NOBODY, 0.5, 3, 3, 3, 900, 3, 0.6, 1000)
SILENT = replace(RIGHT, prediction=ABSTAIN, votes=510, radius=0.0)
MISLED = replace(RIGHT, prediction=7, top=7, votes=900, radius=0.4)
FOOLED = replace(RIGHT, network=7, network_unrounded=7)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ([RIGHT], Outcome(smoothed=True, network=True, misled=False, certified=True)),
        ([replace(RIGHT, radius=0.49)], Outcome(smoothed=True, network=True, misled=False, certified=False)),
        ([RIGHT, SILENT], Outcome(smoothed=False, network=True, misled=False, certified=False)),
        ([MISLED, SILENT], Outcome(smoothed=False, network=True, misled=True, certified=False)),
        ([RIGHT, FOOLED], Outcome(smoothed=True, network=False, misled=False, certified=True)),
        ([replace(RIGHT, network_unrounded=7)], Outcome(smoothed=True, network=False, misled=False, certified=True)),
    ],
)
def test_one_bad_version_is_enough(lines: list[AttackLine], wanted: Outcome) -> None:
    assert outcome_of_all(lines, 0.5) == wanted


def test_the_papers_ask_the_network_before_rounding() -> None:
    assert outcome_as_papers(replace(RIGHT, network=7), 0.5).network
    assert not outcome_as_papers(replace(RIGHT, network_unrounded=7), 0.5).network


def test_scores_count_abstentions_as_wrong_and_apart() -> None:
    made = scores([outcome_of_all([line], 0.5) for line in (RIGHT, RIGHT, SILENT, MISLED, FOOLED)])
    assert (made.smoothed, made.network) == (binomial_interval(3, 5), binomial_interval(4, 5))
    assert (made.abstained, made.certified, made.inputs) == (binomial_interval(1, 5), binomial_interval(3, 5), 5)


def test_the_worst_is_per_input_and_not_the_worst_attack() -> None:
    """Two attacks with one success each on different inputs leave nothing; the lower of the two accuracies would say half."""
    one = [MISLED, replace(RIGHT, index=1)]
    two = [RIGHT, replace(MISLED, index=1)]
    assert scores(worst_outcomes([one, two], 0.5)).smoothed.value == 0
    planted = min(scores(worst_outcomes([entry], 0.5)).smoothed.value for entry in (one, two))
    assert planted == 0.5


def test_attacks_on_other_inputs_are_not_put_together() -> None:
    with pytest.raises(DataError, match="do not hold the same inputs"):
        worst_outcomes([[RIGHT], [replace(RIGHT, index=1)]], 0.5)


def test_few_inputs_give_a_wide_interval() -> None:
    made = scores([outcome_of_all([RIGHT], 0.5)] * 3).smoothed
    assert made.value == made.high == 1
    assert made.low == pytest.approx(0.025 ** (1 / 3), abs=1e-5)


def _held(flips: int, covered: int, *, radius: float = 0.5, independent: bool = True, versions: int = 1) -> Crossing:
    certificates = [Certificate(index, 3, 3, 990, 3, radius, 1000) for index in range(covered)]
    lines = {index: replace(MISLED if index < flips else RIGHT, index=index) for index in range(covered + 5)}
    calm = {index: replace(RIGHT, index=index) for index in lines}
    line = CertifiedLine(certificates, 0.001, "here", independent=independent)
    return held_against(line, [lines, *[calm] * (versions - 1)], 0.5, 0.001)


def test_what_alpha_explains_is_no_crossing() -> None:
    assert not _held(0, 400).crossing
    assert not _held(2, 400).crossing
    made = _held(40, 400)
    assert made.crossing
    assert (made.inputs, made.flips, made.certified.value) == (400, 40, 1.0)


def test_chance_is_counted_over_all_inputs_not_over_those_that_got_a_certificate() -> None:
    """Ten inputs of 10,000 got a false certificate of this size: what alpha 0.001 allows, though all ten of them fail."""
    certificates = [Certificate(index, 3, 3, 990, 3, 0.5 if index < 10 else 0.4, 1000) for index in range(10_000)]
    lines = {index: replace(MISLED, index=index) for index in range(10_000)}
    for independent in (True, False):
        line = CertifiedLine(certificates, 0.001, "here", independent=independent)
        made = held_against(line, [lines], 0.5, 0.0)
        assert (made.flips, made.crossing) == (10, False)
        assert made.probability == pytest.approx(0.5421 if independent else 1.0, abs=1e-3)


def test_the_probability_is_the_binomial_tail() -> None:
    generator = np.random.default_rng(0)
    drawn = generator.binomial(400, 0.002, size=200_000)
    assert _held(4, 400).probability == pytest.approx(float((drawn >= 4).mean()), rel=0.1)
    assert _held(4, 400, versions=6).probability > _held(4, 400).probability, "more answers may fail by chance"


def test_certificates_that_share_noise_may_fail_together() -> None:
    assert _held(40, 400).probability < 1e-6
    assert _held(40, 400, independent=False).probability == pytest.approx(400 * 0.002 / 40)


def test_only_certificates_that_reach_count() -> None:
    assert _held(40, 400, radius=0.499999).flips == 0


def test_an_abstention_contradicts_no_certificate() -> None:
    line = CertifiedLine([Certificate(0, 3, 3, 990, 3, 0.6, 1000)], 0.001, "here")
    assert held_against(line, [{0: SILENT}], 0.5, 0.001).flips == 0
    assert held_against(line, [{0: MISLED}], 0.5, 0.001).flips == 1
