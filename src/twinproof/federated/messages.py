"""What travels between parties and coordinator, and whether an update may be counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twinproof.federated.agreement import Agreement

DEFAULT_TIMEOUT = 600.0
"""Seconds that a party over Flower has for a round, where nobody says."""


@dataclass(frozen=True, eq=False)
class Request:
    """The coordinator asks for the sums of one step at these weights: all that the network holds, by name.

    ``agreement`` and ``weights_sha256`` are digests (``Agreement.sha256``, ``training.loop.weights_digest``).
    """

    agreement: str
    step: int
    weights: Mapping[str, Tensor]
    weights_sha256: str


@dataclass(frozen=True, eq=False)
class Update:
    """A party's answer: how many records it drew, and the sum of their clipped gradients by parameter, in float64.

    Its receiver trusts nothing in it, the types included (``refusal``).
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
    """The transport to the parties. It waits for its timeout, and gives what has arrived by then, in any order."""

    def ask(self, request: Request) -> Sequence[Reply]:
        """Sends the request to all parties; a party that does not answer in time is missing in the result."""


# Sums are float64: what rounding adds to a norm is far below this share of it.
_SLACK = 1e-9
_LONGEST = 120


@dataclass(frozen=True)
class Expected:
    """What every update of a round must fit: the step, the weights that were sent, and the parameters by name."""

    agreement: Agreement
    step: int
    weights_sha256: str
    shapes: Mapping[str, tuple[int, ...]]

    def longest(self, drawn: int) -> float:
        """The norm that a sum over ``drawn`` clipped gradients cannot exceed."""
        return drawn * self.agreement.plan.clip_norm * (1 + _SLACK)


def refusal(reply: object, expected: Expected) -> str | None:
    """Why this reply must not be counted; None where it may. Anything may come as a reply.

    Guarantees
        An update that passes is finite, has the right names and shapes in float64, is of this step and these weights, and its
        norm is at most the party's cap times the clipping norm: that is all it can move the sum by, whoever made it. A reply
        that cannot even be looked at is refused, and never ends the round.
    """
    try:
        return _refusal(reply, expected)
    except Exception as error:  # noqa: BLE001 (objects from outside may raise anything when they are looked at)
        return f"the reply cannot be checked: {type(error).__name__}"


def sender_of(reply: object) -> str:
    """Who sent a reply, by the name that the transport gives; ``unknown`` where there is none. Not yet fit to be shown."""
    return reply.sender if type(reply) is Reply and type(reply.sender) is str else "unknown"


def _refusal(reply: object, expected: Expected) -> str | None:
    if type(reply) is not Reply or type(reply.sender) is not str:
        return f"the reply is {shown(type(reply).__name__)}, not a reply with the name of its sender"
    content: object = reply.content
    if type(content) is Failure:
        return shown(content.reason)
    caps = expected.agreement.caps
    if reply.sender not in caps:
        return "the sender is not a party of the agreement"
    if type(content) is not Update:
        return f"the reply holds {shown(type(content).__name__)}, not an update"
    if type(content.party) is not str or content.party != reply.sender:
        return f"the update says that it comes from {shown(content.party)}"
    if not _is_whole(content.step) or content.step != expected.step:
        return f"the update is of step {shown(content.step)}, not of step {expected.step}"
    if type(content.weights_sha256) is not str or content.weights_sha256 != expected.weights_sha256:
        return "the update was computed at other weights than those of this round"
    if not _is_whole(content.drawn) or not 0 <= content.drawn <= caps[reply.sender]:
        return f"{shown(content.drawn)} records drawn, of at most {caps[reply.sender]} that a party of its size may draw"
    return _sum_refusal(content, expected)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value from outside as text for a terminal and a file: short, and without control characters."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST])


def _sum_refusal(update: Update, expected: Expected) -> str | None:
    sums: object = update.sums
    if not isinstance(sums, Mapping):
        return f"the sums are {shown(type(sums).__name__)}, not arrays by name"
    other = sorted(str(name) for name in set(update.sums) ^ set(expected.shapes))
    if other:
        return f"the sums are not those of the network's parameters: {', '.join(map(shown, other[:5]))}"
    squares = 0.0
    for name, shape in expected.shapes.items():
        value = update.sums[name]
        if type(value) is not np.ndarray or value.dtype != np.float64:
            return f"{name} is {shown(str(getattr(value, 'dtype', type(value))))}, not float64"
        if value.shape != shape:
            return f"{name} has shape {value.shape}, not {shape}"
        if not np.isfinite(value).all():
            return f"{name} holds numbers that are not finite"
        with np.errstate(over="ignore", under="ignore"):  # infinity is longer than any bound
            squares += float(np.square(value).sum())
    length, longest = math.sqrt(squares), expected.longest(update.drawn)
    if length > longest:
        return f"the sum is {length:.6g} long, and {update.drawn} clipped gradients make at most {longest:.6g}"
    return None
