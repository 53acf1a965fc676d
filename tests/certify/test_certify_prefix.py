"""Stopping early changes no draw: what an input saw is the beginning of what the full run shows it, in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certify.grid_gaussian import BLOCK, GridGaussian
from twinproof.certify.smoothed import Sampling, SmoothedClassifier
from twinproof.certify.votes import Span, VoteCounter
from twinproof.randomness import Key
from twinproof.runs.certificates import Certificate

KEY, NOISE = Key.from_seed(6), GridGaussian(0.5, 16)
# Looks within the first block, at its end, behind it, and an end that is not a multiple of anything.
FIXED, TARGET = Sampling(n0=60, n=2300), Sampling(n0=60, n=2300, target_radius=0.25)
CPU = torch.device("cpu")


class Halves(nn.Module):
    """Three classes by exact arithmetic, so that votes do not depend on the batch; counts the rows it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 3)."""
        self.rows += len(x)
        return torch.stack((x[:, 0], x[:, 1], torch.full_like(x[:, 0], 0.25)), dim=1)


INPUTS: NDArray[np.int64] = np.random.default_rng(4).integers(0, 17, size=(24, 2))


def _certify(sampling: Sampling, inputs: NDArray[np.int64] = INPUTS, *, first: int = 0, rows: int = 2000) -> list[Certificate]:
    return SmoothedClassifier(Halves(), NOISE).certify(inputs, sampling=sampling, key=KEY, first_index=first, rows=rows)


SEQUENTIAL = _certify(TARGET)


def _votes_one_by_one(index: int, top: int, draws: int) -> NDArray[np.int64]:
    """Running number of votes for ``top`` over the draws of the full run, block by block."""
    blocks = [
        NOISE.block(KEY, "estimate", index, number, (min(BLOCK, draws - number * BLOCK), 2), CPU)
        for number in range(-(-draws // BLOCK))
    ]
    noisy = (torch.cat(blocks) + torch.from_numpy(INPUTS[index]).to(torch.float32)) / 16
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


@pytest.mark.parametrize("rows", [1, 130, 999, 10**6])
def test_rows_do_not_change_the_result(rows: int) -> None:
    assert _certify(TARGET, rows=rows) == SEQUENTIAL


@pytest.mark.parametrize("cut", [1, 7, 23])
def test_a_part_is_the_same_as_in_the_whole(cut: int) -> None:
    assert _certify(TARGET, INPUTS[:cut]) + _certify(TARGET, INPUTS[cut:], first=cut) == SEQUENTIAL


def test_decided_inputs_are_not_drawn_for_any_more() -> None:
    model = Halves()
    made = SmoothedClassifier(model, NOISE).certify(INPUTS, sampling=TARGET, key=KEY)
    probes = 1 + 1 + 3  # the checks that the network treats rows alone
    assert model.rows == probes + TARGET.n0 * len(INPUTS) + sum(one.draws for one in made)


@pytest.mark.parametrize(
    ("span", "blocks", "within"),
    [
        (Span(0, 125, 10_000), [0], [(0, 125, 1000)]),
        (Span(125, 250, 10_000), [0], [(125, 250, 1000)]),
        (Span(500, 1000, 10_000), [0], [(500, 1000, 1000)]),
        (Span(1000, 2000, 2300), [1], [(0, 1000, 1000)]),
        (Span(2000, 2300, 2300), [2], [(0, 300, 300)]),
        (Span(900, 2100, 2300), [0, 1, 2], [(900, 1000, 1000), (0, 1000, 1000), (0, 100, 300)]),
    ],
)
def test_spans_of_draws_in_blocks(span: Span, blocks: list[int], within: list[tuple[int, int, int]]) -> None:
    assert list(span.blocks) == blocks
    assert [span.within(number) for number in blocks] == within


@dataclass(frozen=True)
class Shapely(GridGaussian):
    """A sampler like a GPU's: a block of another size holds other draws."""

    honest: bool = True

    def grows(self, device: torch.device) -> bool:
        """False; the planted bug says True."""
        return not self.honest

    def block(self, key: Key, purpose: str, index: int, number: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """The noise, under a name that holds the size."""
        return super().block(key, f"{purpose} {shape[0]}", index, number, shape, device)


def _spans_add_up(noise: GridGaussian, device: str = "cpu") -> bool:
    """Whether the votes of consecutive spans are together the votes of the whole."""
    counter = VoteCounter(Halves(), noise, 3, KEY, rows=700)
    stored, indices = torch.from_numpy(INPUTS).to(device, torch.float32), list(range(len(INPUTS)))
    whole = counter.count("estimate", indices, stored, 2300)
    ends = [0, 125, 250, 500, 1000, 1400, 2300]
    parts = [counter.count("estimate", indices, stored, end, after=after, of=2300) for after, end in pairwise(ends)]
    return torch.equal(torch.stack(parts).sum(dim=0), whole)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_votes_of_spans_add_up_to_those_of_the_whole(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that torch can use")
    assert _spans_add_up(NOISE, device)


def test_they_do_where_a_short_block_is_not_the_beginning_of_a_long_one() -> None:
    assert _spans_add_up(Shapely(0.5, 16))


def test_planted_short_blocks_taken_for_the_beginning_are_caught() -> None:
    assert not _spans_add_up(Shapely(0.5, 16, honest=False))
