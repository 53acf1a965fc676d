"""Flower as the transport between coordinator and parties.

Flower moves messages and knows nodes; what a message means, and whether it counts, is decided in the rest of this room.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from twinproof.data.record import Dataset
from twinproof.errors import RunError, TwinproofError
from twinproof.federated.agreement import Agreement, check_timeout
from twinproof.federated.local import Answering
from twinproof.federated.messages import DEFAULT_TIMEOUT, Failure, Reply, Request, Update
from twinproof.federated.train import federate
from twinproof.progress import Progress, Silent

FIELDS, ARRAYS = "twinproof.fields", "twinproof.arrays"
PARTY = "party"
# What reading a message that somebody else made may raise; numpy asks for the memory that a header claims.
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, OSError, EOFError, MemoryError)


def request_content(request: Request) -> RecordDict:
    """The content of a message to a party."""
    fields = {"agreement": request.agreement, "step": request.step, "weights_sha256": request.weights_sha256}
    weights = {name: Array(np.ascontiguousarray(value.cpu().numpy())) for name, value in request.weights.items()}
    return RecordDict({FIELDS: ConfigRecord(fields), ARRAYS: ArrayRecord(weights)})


def read_request(message: Message) -> Request:
    """The request in a message from the coordinator; RunError where there is none."""
    try:
        fields, arrays = message.content[FIELDS], message.content[ARRAYS]
        weights = {str(name): torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        return Request(str(fields["agreement"]), int(fields["step"]), weights, str(fields["weights_sha256"]))
    except _BROKEN as error:
        raise RunError("the request cannot be read", where="message of the coordinator", got=error) from error


def update_content(update: Update) -> RecordDict:
    """The content of a party's answer."""
    fields = {PARTY: update.party, "step": update.step, "drawn": update.drawn, "weights_sha256": update.weights_sha256}
    sums = {name: Array(np.ascontiguousarray(value)) for name, value in update.sums.items()}
    return RecordDict({FIELDS: ConfigRecord(fields), ARRAYS: ArrayRecord(sums)})


def read_update(message: Message) -> Update | Failure:
    """What a party sent. Types and values are left to the checks; what cannot even be read is a failure."""
    if message.has_error():
        return Failure(str(message.error.reason))
    try:
        fields, arrays = message.content[FIELDS], message.content[ARRAYS]
        sums = {str(name): array.numpy() for name, array in arrays.items()}
        return Update(fields[PARTY], fields["step"], fields["drawn"], sums, fields["weights_sha256"])
    except _BROKEN as error:
        return Failure(f"the update cannot be read: {type(error).__name__}")


def name_content(name: str) -> RecordDict:
    """A party's answer to the question who it is."""
    return RecordDict({FIELDS: ConfigRecord({PARTY: name})})


def read_name(message: Message) -> str | Failure:
    """Who a node says it is, or why it does not."""
    if message.has_error():
        return Failure(str(message.error.reason))
    try:
        return str(message.content[FIELDS][PARTY])
    except _BROKEN:
        return Failure("the node does not say which party it is")


_LOGGER = logging.getLogger(__name__)  # for the owner of the machine that it runs on
_REFUSED = 100  # code of an answer that is a party's own error; Flower's own codes lie below
_LOOK_AGAIN = 0.5


class Nodes(Protocol):
    """What is needed of Flower's ``Grid``."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Sends the messages, and gives the answers that arrive in time."""


class NamedParty(Answering, Protocol):
    """One that knows its name: a ``Party``."""

    name: str


class FlowerParties:
    """The parties behind Flower's nodes.

    A node speaks for one party, the one that it named when it was first seen. Weights go to one node of each party: not to
    a node that names nobody of the agreement, nor to a second one of a party while the first is connected. That nodes are
    who they say is left to Flower's authentication.
    """

    def __init__(self, grid: Nodes, agreement: Agreement, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        check_timeout(timeout)
        self._grid = grid
        self._wanted = {party.name for party in agreement.parties}
        self._timeout = timeout
        self._names: dict[int, str] = {}
        self._nameless: dict[int, Failure] = {}

    def wait(self) -> None:
        """Waits until every party has a node, at most for the timeout; who comes later takes part from then on.

        A node that cannot say whose it is stands for a party that cannot begin: it is not waited for, and its reason is noted
        with the first round.
        """
        end = time.monotonic() + self._timeout
        self._meet()
        while len(self._missing) > len(self._nameless) and time.monotonic() < end:
            time.sleep(_LOOK_AGAIN)
            self._meet()

    def ask(self, request: Request) -> Sequence[Reply]:
        self._meet()
        asked: dict[int, str] = {}
        # A party that cannot even begin, with records that do not fit say, is heard of by the number of its node.
        others = [Reply(f"node {node}", reason) for node, reason in self._nameless.items()]
        for node, name in self._names.items():
            if name not in self._wanted:
                others.append(Reply(name, Failure("the node names nobody of the agreement")))
            elif name in asked.values():
                others.append(Reply(name, Failure("a second node names this party")))
            else:
                asked[node] = name
        answers = self._send({node: request_content(request) for node in asked}, MessageType.TRAIN, group=str(request.step))
        known = [(asked.get(answer.metadata.src_node_id), answer) for answer in answers]
        return [*(Reply(name, read_update(answer)) for name, answer in known if name is not None), *others]

    @property
    def _missing(self) -> set[str]:
        return self._wanted - set(self._names.values())

    def _meet(self) -> None:
        """Forgets nodes that are gone and, while somebody is missing, asks the others who they are."""
        present = list(self._grid.get_node_ids())
        self._names = {node: name for node, name in self._names.items() if node in present}
        # A node that never answers would cost every round the whole timeout: only those are asked who are needed.
        new = [node for node in present if node not in self._names] if self._missing else []
        self._nameless = {}
        for answer in self._send({node: RecordDict() for node in new}, MessageType.QUERY, group="names"):
            name, node = read_name(answer), answer.metadata.src_node_id
            if node in new and isinstance(name, str):
                self._names[node] = name
            elif node in new and isinstance(name, Failure):
                self._nameless[node] = name

    def _send(self, contents: Mapping[int, RecordDict], kind: str, *, group: str) -> Sequence[Message]:
        messages = [Message(content, node, kind, ttl=self._timeout, group_id=group) for node, content in contents.items()]
        return list(self._grid.send_and_receive(messages, timeout=self._timeout)) if messages else []


class _Logged(Silent):
    """For a coordinator without a terminal: messages go to the log."""

    def say(self, text: str) -> None:
        _LOGGER.warning("%s", text)


def server_app(
    agreement: Agreement,
    public: Dataset,
    out: Path | str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    resume: bool = False,
    fewest: int = 1,
    progress: Progress | None = None,
) -> ServerApp:
    """Flower's side of the coordinator: it waits for the parties and runs :func:`federate` into ``out``.

    Without ``progress``, who was refused or missing is a warning in the log of the ServerApp.
    """
    check_timeout(timeout)
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        parties = FlowerParties(grid, agreement, timeout=timeout)
        parties.wait()
        federate(agreement, parties, public, out, resume=resume, fewest=fewest, progress=progress or _Logged())

    app.main()(main)
    return app


def client_app(make_party: Callable[[Context], NamedParty]) -> ClientApp:
    """Flower's side of a party. ``make_party`` finds the records and the name; it is called once for each node in a process.

    Guarantees
        Whatever goes wrong at the party, the coordinator hears what kind of thing it was, and no value that the party met. Left
        to itself Flower would send the whole text of an error.
    """
    app = ClientApp()
    made: dict[int, NamedParty] = {}

    def party_of(context: Context) -> NamedParty:
        if context.node_id not in made:
            made[context.node_id] = make_party(context)
        return made[context.node_id]

    def answered(message: Message, content: Callable[[], RecordDict]) -> Message:
        try:
            return Message(content(), reply_to=message)
        except TwinproofError as error:  # its first line names no value: what a party got may depend on its records
            _LOGGER.warning("%s", error)
            return Message(Error(_REFUSED, error.what), reply_to=message)
        except Exception as error:
            _LOGGER.exception("this party cannot answer; the coordinator gets the type of the error alone")
            return Message(Error(_REFUSED, f"the party failed: {type(error).__name__}"), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        return answered(message, lambda: update_content(party_of(context).answer(read_request(message))))

    def query(message: Message, context: Context) -> Message:
        return answered(message, lambda: name_content(party_of(context).name))

    app.train()(train)
    app.query()(query)
    return app
