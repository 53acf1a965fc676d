"""The processes that work on one run together, and the few things they say to each other."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from twinproof.training.distributed.rank_error import RankError
from twinproof.training.distributed.share import WHOLE, Share

_SHOWN = 60


class Ranks(ABC):
    """One rank's view of all of them. Every method that speaks to others must be called by all ranks, in the same order.

    Guarantees
        A rank that is lost, or that stops with an error, ends the work of the others in a ``RankError``; nobody waits for ever.
    """

    share: Share

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

    @abstractmethod
    def sum_in_order(self, flat: Tensor) -> Tensor:
        """The sum of all ranks' vectors, in float64.

        Guarantees
            Rank 0's plus rank 1's plus rank 2's, and so on: a function of the vectors alone, whatever came first, and the same
            to the bit on all ranks.
        """

    @abstractmethod
    def gathered(self, content: bytes) -> list[bytes]:
        """What every rank gave, by rank; the same on all."""

    @abstractmethod
    def from_first(self, content: bytes | None) -> bytes:
        """What rank 0 gave; what others give is not looked at. No rank has it before rank 0 has called."""

    @abstractmethod
    def numbers(self) -> Iterator[int]:
        """0, 1, 2 and so on without end, each given to one rank alone: to the one that asks next.

        Asking waits for nobody, so that ranks may work on what they got for as long as it takes.
        """

    @abstractmethod
    def check_device(self, device: torch.device) -> None:
        """Refuses ranks that would compute on different kinds of device, or share a GPU."""

    def wait(self) -> None:
        """Returns when all ranks have called it."""
        self.gathered(b"")

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        return min(int(value) for value in self.gathered(str(number).encode()))

    def agree(self, thing: str, value: str) -> None:
        """Stops all ranks unless they hold the same ``value``; the error, the same everywhere, names thing and ranks.

        Guarantees
            Nobody returns before rank 0 has called it: what rank 0 did before is done.
        """
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
        raise error if self.is_first else error.told_elsewhere()


class Alone(Ranks):
    """A process by itself: there is nobody to speak to."""

    share = WHOLE

    def sum_in_order(self, flat: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        return flat.double()

    def gathered(self, content: bytes) -> list[bytes]:
        """See :class:`Ranks`."""
        return [content]

    def from_first(self, content: bytes | None) -> bytes:
        """See :class:`Ranks`."""
        return content or b""

    def numbers(self) -> Iterator[int]:
        """See :class:`Ranks`."""
        return itertools.count()

    def check_device(self, device: torch.device) -> None:
        """See :class:`Ranks`."""


ALONE = Alone()
