"""Stopping early changes no draw: what an input saw is the beginning of what the full run shows it, in any batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification import votes
from twinproof.certification.grid_noise import input_noise
from twinproof.certification.method import Sampling
from twinproof.certification.row_trial import RowTrial, Watched
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import NoisyRows, VoteCounter
from twinproof.keys import Key
from twinproof.runs.records import Certificate

KEY, NOISE = Key.from_seed(6), input_noise(0.5, 16)
# Several looks, and an end that is not a multiple of anything.
FIXED, TARGET = Sampling(n0=60, n=2300), Sampling(n0=60, n=2300, target_radius=0.25)
CPU = torch.device("cpu")


class Halves(nn.Module):
    """Three classes by exact arithmetic, so that votes do not depend on the batch; its copies count the rows together."""

    rows = 0

    def forward(self, x: Tensor) -> Tensor:
        Halves.rows += len(x)
        return torch.stack((x[:, 0], x[:, 1], torch.full_like(x[:, 0], 0.25)), dim=1)


INPUTS: NDArray[np.int64] = np.random.default_rng(4).integers(0, 17, size=(24, 2))


def _certify(sampling: Sampling, inputs: NDArray[np.int64] = INPUTS, *, first: int = 0, rows: int = 2000) -> list[Certificate]:
    return smooth(Halves(), 0.5, levels=16).certify(inputs, sampling=sampling, key=KEY, first_index=first, rows=rows)


SEQUENTIAL = _certify(TARGET)


def _votes_one_by_one(index: int, top: int, draws: int) -> NDArray[np.int64]:
    """Running number of votes for ``top`` over the draws of the full run, one by one."""
    noisy = (NOISE.draws(KEY, "estimate", index, 0, draws, 2, CPU) + torch.from_numpy(INPUTS[index]).to(torch.float32)) / 16
    return np.cumsum(np.asarray(Halves()(noisy).argmax(dim=1) == top), dtype=np.int64)


def test_inputs_stop_at_several_looks() -> None:
    assert len({one.draws for one in SEQUENTIAL}) >= 4
    assert {one.draws for one in SEQUENTIAL} <= {look.draws for look in TARGET.schedule.looks}


def test_votes_are_those_of_the_first_draws_of_the_full_run() -> None:
    for stopped, full in zip(SEQUENTIAL, _certify(FIXED), strict=True):
        running = _votes_one_by_one(full.index, full.top, FIXED.n)
        assert stopped.top == full.top
        assert (full.votes, full.draws) == (running[-1], FIXED.n)
        assert stopped.votes == running[stopped.draws - 1], f"input {full.index} after {stopped.draws} draws"


@pytest.mark.parametrize("rows", [7, 130, 999, 10**6])
def test_rows_do_not_change_the_result(rows: int) -> None:
    assert _certify(TARGET, rows=rows) == SEQUENTIAL


@pytest.mark.parametrize("cut", [1, 7, 23])
def test_a_part_is_the_same_as_in_the_whole(cut: int) -> None:
    assert _certify(TARGET, INPUTS[:cut]) + _certify(TARGET, INPUTS[cut:], first=cut) == SEQUENTIAL


def test_decided_inputs_are_not_drawn_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "forward", lambda watched, x: watched.network(x))  # what is tried besides does not count
    monkeypatch.setattr(RowTrial, "finish", lambda trial: None)
    smoothed = smooth(Halves(), 0.5, levels=16)
    smoothed = replace(smoothed, base=smoothed.base_for(INPUTS[:1], TARGET))
    before = Halves.rows
    made = smoothed.certify(INPUTS, sampling=TARGET, key=KEY)
    assert Halves.rows - before == TARGET.n0 * len(INPUTS) + sum(one.draws for one in made)


def _spans_add_up(device: str = "cpu") -> bool:
    """Whether the votes of consecutive spans are together the votes of the whole."""
    counter = VoteCounter(Halves(), NOISE, 3, KEY, rows=700)
    stored, indices = torch.from_numpy(INPUTS).to(device, torch.float32), list(range(len(INPUTS)))
    whole = counter.count("estimate", indices, stored, 2300)
    ends = [0, 125, 250, 500, 1000, 1400, 2300]
    parts = [counter.count("estimate", indices, stored, end, after=after) for after, end in pairwise(ends)]
    return torch.equal(torch.stack(parts).sum(dim=0), whole)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_votes_of_spans_add_up_to_those_of_the_whole(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that torch can use")
    assert _spans_add_up(device)


def test_planted_spans_that_begin_with_the_first_draw_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(NoisyRows):
        """Leaves out the right number of draws, but the wrong ones."""

        def __init__(self, *what: Any, after: int = 0) -> None:
            noise, key, purpose, indices, stored, draws = what
            super().__init__(noise, key, purpose, indices, stored, draws - after)

    monkeypatch.setattr(votes, "NoisyRows", Forgetful)
    assert not _spans_add_up()
