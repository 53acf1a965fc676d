"""Ranks: the processes that work on one run together, and how work is shared among them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from twinproof.errors import RunError

GO_ON = "start the same command again (train with --resume); what is on the disk is whole"


class RankError(RunError):
    """Ranks cannot go on together. ``lost`` are those without a heartbeat; ``quiet``: rank 0 prints it, and once is enough."""

    lost: tuple[int, ...] = ()
    quiet: bool = False

    def quietly(self) -> RankError:
        """The same error, on a rank that does not print it."""
        self.quiet = True
        return self


def stopped(rank: int, fields: Mapping[str, str]) -> RankError:
    """The error of another rank, of which these are the ``fields``."""
    inside = fields.get("where", "")
    where = inside if inside.startswith("rank ") else f"rank {rank}" + (f", {inside}" if inside else "")
    rest = {name: fields.get(name, "") for name in ("got", "wanted", "fix")}
    return RankError(fields.get("what", ""), where=where, **rest)


def gone(ranks: Sequence[int]) -> RankError:
    """The error for ranks without a heartbeat."""
    error = RankError(
        "a rank was lost",
        where=", ".join(f"rank {rank}" for rank in ranks),
        got="no heartbeat: it was killed, or its machine is gone",
        wanted="all ranks of the run",
        fix=GO_ON,
    )
    error.lost = tuple(ranks)
    return error


def broken() -> RankError:
    """The error where all ranks are alive, and a connection broke."""
    return RankError(
        "the ranks were separated",
        got="a connection that broke, or a launcher that stopped the run",
        wanted="all ranks until the end",
        fix=GO_ON,
    )


@dataclass(frozen=True)
class Share:
    """The work of ``rank`` (from 0) among ``world`` ranks.

    Whole passes are shared out, not records: noise and dropout are drawn for all rows of a pass at once, so that its sum is the
    same to the bit on every rank.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is not one of {self.world} ranks")

    def has(self, number: int) -> bool:
        """Whether piece ``number`` of the work is this rank's."""
        return number % self.world == self.rank

    def number(self, mine: int) -> int:
        """The number, among the pieces of all ranks, of this rank's piece ``mine``."""
        return mine * self.world + self.rank

    def own(self, indices: Tensor, size: int) -> Tensor:
        """The records of this rank's passes, of ``size`` records each, when ``indices`` are cut into passes.

        Every record is in the share of exactly one rank. Cut again into passes of ``size``, pass m of the share is pass
        ``number(m)`` of the whole, record by record.
        """
        starts = range(self.rank * size, len(indices), self.world * size)
        return torch.cat([indices[:0], *(indices[start : start + size] for start in starts)])


WHOLE = Share()
_SHOWN = 60


class Ranks:
    """One rank's view of all of them; this class itself is a process alone, ``ProcessRanks`` one of several.

    Methods that communicate must be called by all ranks, in the same order. A rank that is lost, or that stops with an error,
    ends the work of the others in a ``RankError``.
    """

    share: Share = WHOLE

    @property
    def rank(self) -> int:
        """The number of this one, from 0; rank 0 alone writes files."""
        return self.share.rank

    @property
    def world(self) -> int:
        """How many there are."""
        return self.share.world

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.share.rank == 0

    def sum_in_order(self, flat: Tensor) -> Tensor:
        """The sum of all ranks' vectors, in float64: always rank 0's plus rank 1's and so on, the same bits on all ranks."""
        return flat.double()

    def gathered(self, content: bytes) -> list[bytes]:
        """What every rank gave, by rank; the same on all."""
        return [content]

    def from_first(self, content: bytes | None) -> bytes:
        """Broadcasts what rank 0 gave; what others give is ignored."""
        return content or b""

    def numbers(self) -> Iterator[int]:
        """0, 1, 2 and so on without end, each given to one rank alone: to the one that asks next. Asking waits for nobody."""
        return itertools.count()

    def check_device(self, device: torch.device) -> None:
        """Refuses ranks that would compute on different kinds of device, or share a GPU."""

    def wait(self) -> None:
        """Returns when all ranks have called it."""
        self.gathered(b"")

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        return min(int(value) for value in self.gathered(str(number).encode()))

    def agree(self, thing: str, value: str) -> None:
        """Stops all ranks unless they hold the same ``value``. No rank returns before rank 0 has called it."""
        values = [found.decode() for found in self.gathered(value.encode())]
        others = [rank for rank, found in enumerate(values) if found != values[0]]
        if not others:
            return
        error = RankError(
            f"the ranks do not agree on {thing}",
            where=", ".join(f"rank {rank}" for rank in others),
            got="; ".join(dict.fromkeys(values[rank][:_SHOWN] for rank in others)),
            wanted=f"{values[0][:_SHOWN]}, as on rank 0",
            fix="start all ranks with the same command, software and data",
        )
        raise error if self.is_first else error.quietly()


ALONE = Ranks()


Item = TypeVar("Item")


def in_rounds(ranks: Ranks, items: Sequence[Item], work: Callable[[Item], bytes]) -> Iterator[tuple[Item, bytes]]:
    """Each item with its result, in the order of ``items``, on all ranks; each result is made by one of them.

    A round is as many items as there are ranks; its results are there before the next one begins.
    """
    for begin in range(0, len(items), ranks.world):
        together = items[begin : begin + ranks.world]
        mine = work(together[ranks.rank]) if ranks.rank < len(together) else b""
        yield from zip(together, ranks.gathered(mine), strict=False)
