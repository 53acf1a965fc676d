"""What travels: weights to the parties, clipped sums back. No record, no gradient of one record, no key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Request:
    """The coordinator asks for the sums of one step at these weights: all that the network holds, by name.

    ``agreement`` and ``weights_sha256`` are digests (``Agreement.sha256``, ``training.distributed.weights``).
    """

    agreement: str
    step: int
    weights: Mapping[str, Tensor]
    weights_sha256: str


@dataclass(frozen=True, eq=False)
class Update:
    """A party's answer: how many records it drew, and the sum of their clipped gradients by parameter, in float64.

    Whoever receives one trusts nothing in it, the types included (``checks``).
    """

    party: str
    step: int
    drawn: int
    sums: Mapping[str, NDArray[Any]]
    weights_sha256: str


@dataclass(frozen=True)
class Failure:
    """What came instead of an update: the party's own error, or a message that cannot be read."""

    reason: str


@dataclass(frozen=True, eq=False)
class Reply:
    """What came from the party that the transport knows as ``sender``."""

    sender: str
    content: Update | Failure


class Parties(Protocol):
    """The way to the parties. It waits as long as it was told to, and gives what has arrived by then, in any order."""

    def ask(self, request: Request) -> Sequence[Reply]:
        """Sends the request to all parties; one that does not answer in time is missing in the result."""
