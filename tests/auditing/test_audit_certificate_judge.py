"""A confirmed flip is a fact with its own error: at a point where no class wins, hardly any is confirmed."""

from __future__ import annotations

from dataclasses import replace

import torch
from audited_runs import half_space

from twinproof.auditing.certificate_judge import CROSSED, Judge
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.keys import Key
from twinproof.runs.records import ABSTAIN

ROWS, VOTES, LEVEL = 2000, 150, 0.02
# P(binomial(2000, 0.02) > 80) < 1e-7
MOST = 80


def smoothed() -> SmoothedClassifier:
    """Level 100 lies on the boundary (rounding of float32 moves it by 1e-7 of the noise)."""
    made = smooth(half_space(torch.tensor([1.0, 0.0]), 100 / 255), 0.2)
    return replace(made, base=made.base_for(torch.zeros(1, 2, dtype=torch.int64), Sampling()))


def judge(key: Key | None = None, *, level: float = LEVEL, shared_noise: bool = False) -> Judge:
    return Judge(smoothed(), key or Key.from_seed(1), 0, shared_noise=shared_noise, screen=100, votes=VOTES, level=level)


def points(level: int, rows: int) -> torch.Tensor:
    return torch.tensor([[level, 7]]).repeat(rows, 1)


def test_a_tie_is_hardly_ever_confirmed_as_a_flip() -> None:
    answers = judge().confirm(points(100, ROWS))
    assert sum(one.prediction != ABSTAIN for one in answers) <= MOST


def test_planted_majority_for_a_bound_is_caught() -> None:
    """The leader of the votes taken for the winner: half of all ties would be flips."""
    answers = judge().confirm(points(100, ROWS))
    assert sum(one.votes > VOTES / 2 for one in answers) > MOST


def test_clear_points_are_decided_both_ways() -> None:
    assert {one.prediction for one in judge().confirm(points(255, 20))} == {1}
    assert {one.prediction for one in judge().confirm(points(0, 20))} == {0}
    asked = judge()
    assert bool((asked.screen(points(0, 20), [0] * 20).margins > asked.clear).all())
    assert bool((asked.screen(points(255, 20), [0] * 20).margins < CROSSED).all())


def test_every_call_has_noise_of_its_own() -> None:
    asked = judge()
    first, second = ([one.votes for one in asked.confirm(points(100, 50))] for _ in range(2))
    assert first != second
    assert first == [one.votes for one in judge().confirm(points(100, 50))], "the same call again is the same"
    assert first != [one.votes for one in judge(Key.from_seed(2)).confirm(points(100, 50))]
