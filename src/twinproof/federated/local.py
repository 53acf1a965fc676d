"""Parties in this process, for trials on one machine and for tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from twinproof.data.record import Dataset
from twinproof.errors import MissingExtra, TwinproofError
from twinproof.federated.agreement import DeclaredParty, agree, check_timeout, public_part, unequal_shares
from twinproof.federated.messages import DEFAULT_TIMEOUT, Failure, Reply, Request, Update
from twinproof.federated.party import Party, repeatable_key
from twinproof.federated.train import federate
from twinproof.progress import Progress
from twinproof.recipes.config import TrainConfig
from twinproof.recipes.resolve import check_test_part
from twinproof.runs.run import Run


class Answering(Protocol):
    """What answers requests: a ``Party``."""

    def answer(self, request: Request) -> Update:
        """The update that is asked for; an error says why there is none."""


class LocalParties:
    """Asks the parties one after the other, and waits for each at most ``timeout`` seconds (None: as long as it takes).

    One that is still busy with an earlier round is not asked again, and is missing. Computing beside the others it draws none
    of their numbers: layers draw under ``compute.devices.own_generators``.
    """

    def __init__(self, parties: Mapping[str, Answering], *, timeout: float | None = None) -> None:
        check_timeout(timeout)
        self._parties = parties
        self._timeout = timeout
        self._busy: dict[str, Thread] = {}

    def ask(self, request: Request) -> Sequence[Reply]:
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


def federate_shares(
    settings: Mapping[str, Any] | TrainConfig,
    dataset: Dataset,
    out: Path | str,
    *,
    parties: int = 4,
    flower: bool = False,
    timeout: float | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Shares the training records out to ``parties`` of different sizes and trains with them, here or over Flower.

    ``timeout`` is how many seconds a party has for a round; None for as long as it takes (over Flower: ten minutes).
    """
    check_test_part(dataset)
    shares, public = unequal_shares(dataset.train, parties), public_part(dataset)
    agreement = agree(settings, [DeclaredParty(name, len(share)) for name, share in shares.items()], public)
    if flower:
        for package in ("flwr", "ray"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtra("federated", package, "training over Flower")
        from twinproof.federated.flower_simulation import simulate

        patience = DEFAULT_TIMEOUT if timeout is None else timeout
        return simulate(agreement, shares, public, out, timeout=patience, resume=resume, progress=progress)
    seed = agreement.config.seed
    members = {
        name: Party(name, share, agreement, public, key=None if seed is None else repeatable_key(seed, name))
        for name, share in shares.items()
    }
    return federate(agreement, LocalParties(members, timeout=timeout), public, out, resume=resume, progress=progress)
