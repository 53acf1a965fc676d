"""Every drawn record is added by one rank, in the pass that it has when one process does everything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from twinproof.compute.ranks import WHOLE, Share


def parts_of(shares: list[Share], indices: Tensor, size: int) -> list[int]:
    return sorted(int(index) for share in shares for index in share.own(indices, size))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("drawn", [0, 1, 8, 9, 40, 41])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_the_shares_are_a_partition_into_the_same_passes(world: int, drawn: int, size: int) -> None:
    indices = 3 * torch.arange(drawn) + 1
    shares = [Share(rank, world) for rank in range(world)]
    assert parts_of(shares, indices, size) == indices.tolist()
    passes = list(torch.split(indices, size)) if drawn else []
    found = {}
    for share in shares:
        own = share.own(indices, size)
        for mine, chunk in enumerate(torch.split(own, size) if len(own) else []):
            assert share.has(share.number(mine))
            found[share.number(mine)] = chunk.tolist()
    assert [found[number] for number in range(len(passes))] == [chunk.tolist() for chunk in passes]


class Overlapping(Share):
    """The bug: the first pass is everybody's."""

    def own(self, indices: Tensor, size: int) -> Tensor:
        return torch.cat([indices[:size], super().own(indices, size)]) if self.rank else super().own(indices, size)


def test_a_pass_that_two_ranks_have_is_caught() -> None:
    indices = torch.arange(20)
    assert parts_of([Overlapping(0, 2), Overlapping(1, 2)], indices, 8) != indices.tolist()


def test_one_rank_has_everything() -> None:
    indices = torch.arange(11)
    assert torch.equal(WHOLE.own(indices, 4), indices)
    assert all(WHOLE.has(number) and WHOLE.number(number) == number for number in range(5))


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        Share(rank, world)
