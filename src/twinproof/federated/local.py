"""Parties in this process: for trying things out on one machine, and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Protocol

from twinproof.errors import TwinproofError
from twinproof.federated.messages import Failure, Reply, Request, Update
from twinproof.federated.timeouts import check_timeout


class Answering(Protocol):
    """Whoever answers requests: a ``Party``."""

    def answer(self, request: Request) -> Update:
        """The update that is asked for; an error says why there is none."""


class NamedParty(Answering, Protocol):
    """One that knows its name."""

    name: str


class LocalParties:
    """Asks the parties one after the other, and waits for each at most ``timeout`` seconds (None: as long as it takes).

    One that is still busy with an earlier round is not asked again, and is missing. It computes beside the others then, and
    draws no number of theirs: layers take theirs under ``torch_seeding.own_generators``.
    """

    def __init__(self, parties: Mapping[str, Answering], *, timeout: float | None = None) -> None:
        check_timeout(timeout)
        self._parties = parties
        self._timeout = timeout
        self._busy: dict[str, Thread] = {}

    def ask(self, request: Request) -> Sequence[Reply]:
        """See ``messages.Parties``."""
        replies = [self._reply(name, party, request) for name, party in self._parties.items()]
        return [reply for reply in replies if reply is not None]

    def _reply(self, name: str, party: Answering, request: Request) -> Reply | None:
        if self._timeout is None:
            return _answered(name, party, request)
        if name in self._busy and self._busy[name].is_alive():
            return None
        arrived: list[Reply] = []
        self._busy[name] = Thread(target=lambda: arrived.append(_answered(name, party, request)), daemon=True)
        self._busy[name].start()
        self._busy[name].join(self._timeout)
        return arrived[0] if arrived else None


def _answered(name: str, party: Answering, request: Request) -> Reply:
    try:
        return Reply(name, party.answer(request))
    except TwinproofError as error:  # its first line names no value: what a party got may depend on its records
        return Reply(name, Failure(error.what))
    except Exception as error:  # noqa: BLE001 (one party's bug must not end the round of the others)
        return Reply(name, Failure(f"the party failed: {type(error).__name__}"))
