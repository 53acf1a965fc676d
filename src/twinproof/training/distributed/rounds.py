"""Work on a list of items, shared out among ranks round by round: results are in order, and there as soon as a round is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from twinproof.training.distributed.ranks import Ranks

Item = TypeVar("Item")


def in_rounds(ranks: Ranks, items: Sequence[Item], work: Callable[[Item], bytes]) -> Iterator[tuple[Item, bytes]]:
    """Each item with its result, in the order of ``items``, on all ranks; each result is made by one of them.

    Guarantees
        A round is as many items as there are ranks, and its results are there before the next one begins: who keeps them as
        they come loses one round at most.
    """
    for begin in range(0, len(items), ranks.world):
        together = items[begin : begin + ranks.world]
        mine = work(together[ranks.rank]) if ranks.rank < len(together) else b""
        yield from zip(together, ranks.gathered(mine), strict=False)
