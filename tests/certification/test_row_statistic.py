"""Votes and scores as whole numbers: exact sums, nothing above one, and nothing from a row without an answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from twinproof.certification.votes import RowStatistic, Scores, Votes, row_statistic

NAN, INF = math.nan, math.inf


def _sums(statistic: RowStatistic, outputs: Tensor, owners: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    sums = statistic.empty(inputs, outputs.shape[1], outputs.device)
    statistic.add(sums, owners.clone(), outputs)
    return statistic.moments(sums)


def _outputs(rows: int = 4000, classes: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 6 * torch.randn(rows, classes, generator=generator)


@pytest.mark.parametrize("name", ["votes", "scores"])
def test_sums_do_not_depend_on_the_order_or_the_batch(name: str) -> None:
    statistic, outputs = row_statistic(name), _outputs()
    owners = torch.arange(len(outputs)) % 3
    whole = _sums(statistic, outputs, owners, 3)
    order = torch.randperm(len(outputs), generator=torch.Generator().manual_seed(2))
    shuffled = _sums(statistic, outputs[order], owners[order], 3)
    halves = [_sums(statistic, outputs[part], owners[part], 3) for part in (slice(0, 1234), slice(1234, None))]
    for number in (0, 1):
        assert whole[number].dtype == torch.int64
        assert torch.equal(whole[number], shuffled[number])
        assert torch.equal(whole[number], halves[0][number] + halves[1][number])


def test_votes_are_their_own_squares() -> None:
    sums, squares = _sums(Votes(), torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 0.5]]), torch.tensor([0, 0, 1]), 2)
    assert sums.tolist() == [[1, 1], [0, 1]]
    assert torch.equal(sums, squares)


def test_scores_are_the_floored_softmax_and_its_square() -> None:
    outputs = _outputs(50)
    sums, squares = _sums(Scores(), outputs, torch.arange(50), 50)
    shares = torch.softmax(outputs.double(), dim=1) * 2**20
    assert torch.equal(sums, shares.floor().long())
    assert torch.equal(squares, sums * sums)


def _add_up(statistic: RowStatistic, outputs: Tensor) -> bool:
    """Whether no row's scores add up to more than one."""
    sums, _ = _sums(statistic, outputs, torch.arange(len(outputs)), len(outputs))
    return bool((sums.sum(dim=1) <= statistic.resolution).all()) and bool((sums >= 0).all())


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_scores_of_a_row_never_add_up_to_more_than_one(classes: int) -> None:
    assert _add_up(Scores(), _outputs(2000, classes))
    assert _add_up(Scores(), torch.zeros(10, classes))


def test_planted_rounding_to_the_nearest_is_caught() -> None:
    class Nearest(Scores):
        """Rounds, so that a row's scores may add up to more than one, and the complement no longer bounds the others."""

        def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
            units = (torch.softmax(outputs.double(), dim=1) * self.resolution).round().long()
            sums.index_add_(0, owners, torch.cat((units, units * units), dim=1))

    assert not _add_up(Nearest(), _outputs(2000, 10))


BROKEN = [[NAN, 0.0, 1.0], [INF, INF, 0.0], [NAN, NAN, NAN]]


@pytest.mark.parametrize("row", [BROKEN[0], BROKEN[2]])
@pytest.mark.parametrize("make", [Votes, Scores])
def test_a_row_with_a_nan_counts_for_nobody(make: Callable[[], RowStatistic], row: list[float]) -> None:
    sums, squares = _sums(make(), torch.tensor([row]), torch.zeros(1, dtype=torch.int64), 1)
    assert not sums.any()
    assert not squares.any()


def test_outputs_without_a_softmax_count_for_nobody_and_infinite_ones_for_all() -> None:
    sums, _ = _sums(Scores(), torch.tensor([BROKEN[1], [-INF, 5.0, -INF]]), torch.arange(2), 2)
    assert sums.tolist() == [[0, 0, 0], [0, 2**20, 0]]
