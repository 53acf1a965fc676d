"""The draws of a plan are Poisson samples: Binomial sizes, the same rate for all, records and steps independent.

Every test has a false alarm below 1e-6 and, with the same threshold, catches a sampler that is a little wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from private_path import make_plan, new_ledger
from scipy import stats

from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.plan import Draw, PrivateExecution
from twinproof.privacy.step_randomness import DeviceRandomness, HostRandomness, StepRandomness, poisson_sample

RECORDS, RATE, STEPS = 60, 0.2, 4000
SMALLEST_P = 1e-7
Sampler = Callable[..., NDArray[np.int64]]
Taken = NDArray[np.bool_]


def taken_by_step(folder: Path) -> Taken:
    """(steps, records): who was drawn when, by the execution that the training loop uses."""
    plan = make_plan(sample_rate=RATE, steps=STEPS)
    execution = PrivateExecution(plan, Key.from_seed(3), new_ledger(folder), records=RECORDS, parameters=1)
    taken = np.zeros((STEPS, RECORDS), dtype=bool)
    for step in range(STEPS):
        taken[step, execution.draw(step).indices] = True
    return taken


def p_of_batch_sizes(taken: Taken) -> float:
    """Chi-square of the batch sizes against Binomial(n, q), rare sizes put together."""
    sizes = np.bincount(taken.sum(1), minlength=RECORDS + 1)
    expected = stats.binom.pmf(np.arange(RECORDS + 1), RECORDS, RATE) * STEPS
    common = expected >= 8
    low, high = int(np.argmax(common)), RECORDS - int(np.argmax(common[::-1]))
    seen = np.concatenate([[sizes[:low].sum()], sizes[low : high + 1], [sizes[high + 1 :].sum()]])
    wanted = np.concatenate([[expected[:low].sum()], expected[low : high + 1], [expected[high + 1 :].sum()]])
    return float(stats.chisquare(seen, wanted).pvalue)


def p_of_participation(taken: Taken) -> float:
    """Chi-square of how often each record was drawn, against STEPS trials at the rate."""
    z = (taken.sum(0) - STEPS * RATE) / math.sqrt(STEPS * RATE * (1 - RATE))
    return float(2 * min(stats.chi2.sf((z**2).sum(), RECORDS), stats.chi2.cdf((z**2).sum(), RECORDS)))


def largest_pair_score(taken: Taken) -> float:
    """The largest correlation score over all pairs of columns; normal, so that 7 is never reached by 1e5 pairs."""
    centred = taken - RATE
    scores = centred.T @ centred / (RATE * (1 - RATE) * math.sqrt(len(taken)))
    return float(np.abs(scores[np.triu_indices(taken.shape[1], 1)]).max())


def verdicts(taken: Taken) -> dict[str, bool]:
    """What each test says of a sampler; all True for a Poisson sampler."""
    blocks = taken[: STEPS - STEPS % 10].reshape(-1, 10, RECORDS)
    following = blocks.transpose(0, 2, 1).reshape(-1, 10)  # the same record in ten steps that follow each other
    return {
        "sizes": p_of_batch_sizes(taken) >= SMALLEST_P,
        "participation": p_of_participation(taken) >= SMALLEST_P,
        "records": largest_pair_score(taken) < 7,
        "steps": largest_pair_score(following) < 7,
    }


@pytest.mark.parametrize("source", [HostRandomness, DeviceRandomness])
def test_draws_are_poisson_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: type[StepRandomness]) -> None:
    if source is DeviceRandomness:
        monkeypatch.setattr("twinproof.privacy.plan.step_randomness", source)
    assert all(verdicts(taken_by_step(tmp_path)).values())


def fixed_size(key: Key, step: int, *, records: int, sample_rate: float) -> NDArray[np.int64]:
    size = round(records * sample_rate)
    return np.sort(np.argsort(key.words("sampling", step, count=records))[:size]).astype(np.int64)


def shuffled_epochs(key: Key, step: int, *, records: int, sample_rate: float) -> NDArray[np.int64]:
    size = round(records * sample_rate)
    epoch, part = divmod(step, round(1 / sample_rate))
    order = np.argsort(key.words("sampling", epoch, count=records))
    return np.sort(order[part * size : (part + 1) * size]).astype(np.int64)


def friends(key: Key, step: int, *, records: int, sample_rate: float) -> NDArray[np.int64]:
    """The first two records share their coin."""
    drawn = poisson_sample(key, step, records=records, sample_rate=sample_rate)
    return np.union1d(drawn, [0, 1]) if 0 in drawn else np.setdiff1d(drawn, [1])


def rate_times(factor: float) -> Sampler:
    return lambda key, step, records, sample_rate: poisson_sample(key, step, records=records, sample_rate=factor * sample_rate)


def every_second_step_again(key: Key, step: int, *, records: int, sample_rate: float) -> NDArray[np.int64]:
    return poisson_sample(key, step // 2, records=records, sample_rate=sample_rate)


@pytest.mark.parametrize(
    ("wrong", "caught_by"),
    [
        (fixed_size, "sizes"),
        (shuffled_epochs, "steps"),
        (rate_times(1.05), "sizes"),
        (rate_times(0.95), "participation"),
        (friends, "records"),
        (every_second_step_again, "steps"),
    ],
)
def test_planted_sampler_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Sampler, caught_by: str) -> None:
    monkeypatch.setattr("twinproof.privacy.step_randomness.poisson_sample", wrong)
    assert not verdicts(taken_by_step(tmp_path))[caught_by]


class FixedWords(Key):
    """A key with words of our choice."""

    def words(self, purpose: str, *counters: int, count: int) -> NDArray[np.uint64]:
        return np.array([0, 2**62 - 1, 2**62, 2**62 + 1, 2**64 - 1], dtype=np.uint64)


@pytest.mark.parametrize(("rate", "taken"), [(0.25, [0, 1]), (0.0, []), (2.0**-64, [0]), (1 - 2.0**-53, [0, 1, 2, 3])])
def test_the_threshold_is_exact(rate: float, taken: list[int]) -> None:
    """Of 2^64 words exactly floor(rate * 2^64) are taken, never one more: the rate accounted for is not passed."""
    assert poisson_sample(FixedWords(bytes(32)), 0, records=5, sample_rate=rate).tolist() == taken
    assert poisson_sample(FixedWords(bytes(32)), 0, records=5, sample_rate=1.0).tolist() == [0, 1, 2, 3, 4]


def test_indices_are_sorted_and_unique_and_come_from_the_key_alone() -> None:
    first, again = (poisson_sample(Key.from_seed(1), 5, records=500, sample_rate=0.3) for _ in range(2))
    assert np.array_equal(first, again)
    assert (np.diff(first) > 0).all()
    assert first.dtype == np.int64
    assert not np.array_equal(first, poisson_sample(Key.from_seed(2), 5, records=500, sample_rate=0.3))
    longer = poisson_sample(Key.from_seed(1), 5, records=501, sample_rate=0.3)
    assert np.array_equal(longer[longer < 500], first)  # one record more changes nobody else's coin


def test_a_foreign_sampler_is_refused(tmp_path: Path) -> None:
    plan = make_plan(sample_rate=0.5, steps=4)
    execution, other = (
        PrivateExecution(plan, Key.from_seed(1), new_ledger(tmp_path, file), records=4, parameters=2) for file in ("a", "b")
    )
    own = execution.draw(0)
    foreign: list[object] = [Draw(0, torch.arange(3), object()), Draw(1, torch.arange(3), execution), other.draw(0)]
    foreign += [replace(own, indices=torch.arange(4)), replace(own, step=1), np.arange(3), None]
    for draw in foreign:
        with pytest.raises(ConfigError, match="were not drawn by the plan") as caught:
            execution.release(draw, {"w": torch.zeros(2)})  # type: ignore[arg-type]
        assert "foreign sampler" in caught.value.fix
        assert caught.value.got == type(draw).__name__
