"""Small federations for the tests of this folder: four parties on digits, and parties that cheat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from twinproof.data.load import load
from twinproof.data.record import Dataset, Split
from twinproof.federated.agreement import Agreement, DeclaredParty, agree, public_part, unequal_shares
from twinproof.federated.coordinator import FederatedGradients, Round
from twinproof.federated.local import Answering, LocalParties
from twinproof.federated.messages import Parties, Reply, Request, Update
from twinproof.federated.party import Party, repeatable_key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.recipes.network import Own, run_network
from twinproof.training.loop import weights_digest

NAMES = ("party-1", "party-2", "party-3", "party-4")


@cache
def digits() -> Dataset:
    return load("digits")


@cache
def public() -> Dataset:
    return public_part(digits())


@cache
def shares() -> dict[str, Split]:
    return unequal_shares(digits().train, 4)


def settings(**changes: Any) -> dict[str, Any]:
    """Six private steps whose epsilon the accountants count in milliseconds."""
    found: dict[str, Any] = {
        "recipe": "dpsgd",
        "noise_multiplier": 20.0,
        "delta": 1e-4,
        "steps": 6,
        "batch_size": 140,
        "model": "mlp",
        "seed": 3,
        "performance": {"device": "cpu", "report_every": 6},
    }
    return found | changes


def agreed(**changes: Any) -> Agreement:
    return agree(settings(**changes), [DeclaredParty(name, len(share)) for name, share in shares().items()], public())


def party(name: str, agreement: Agreement, seed: int = 3) -> Party:
    return Party(name, shares()[name], agreement, public(), key=repeatable_key(seed, name))


def members(agreement: Agreement, seed: int = 3) -> dict[str, Answering]:
    return {name: party(name, agreement, seed) for name in NAMES}


@dataclass
class Cheat:
    """A party whose answers are changed before they leave; ``change`` sees the request too."""

    inner: Answering
    change: Callable[[Update, Request], Update]

    def answer(self, request: Request) -> Update:
        return self.change(self.inner.answer(request), request)


def with_sums(update: Update, change: Callable[[np.ndarray[Any, Any]], Any]) -> Update:
    """The update with its first sum changed."""
    first, *_ = update.sums
    return replace(update, sums={**update.sums, first: change(update.sums[first].copy())})


def zeros(name: str, agreement: Agreement, request: Request, model: nn.Module) -> Update:
    """An honest update of a party that drew nobody."""
    sums = {key: np.zeros(tuple(value.shape)) for key, value in model.named_parameters()}
    return Update(name, request.step, 0, sums, request.weights_sha256)


class Scripted:
    """Parties that answer what a function says, and a memory of what they were asked."""

    def __init__(self, answer: Callable[[Request], Iterable[Reply]]) -> None:
        self._answer = answer
        self.asked: list[Request] = []

    def ask(self, request: Request) -> Sequence[Reply]:
        self.asked.append(request)
        return list(self._answer(request))


class Watched:
    """Parties, and the digest of the weights that they were sent for each step."""

    def __init__(self, inner: Parties, sent: list[tuple[int, str]] | None = None) -> None:
        self._inner = inner
        self.sent: list[tuple[int, str]] = [] if sent is None else sent

    def ask(self, request: Request) -> Sequence[Reply]:
        self.sent.append((request.step, request.weights_sha256))
        return self._inner.ask(request)

    def steps_with_two_versions(self) -> set[int]:
        versions: dict[int, set[str]] = {}
        for step, digest in self.sent:
            versions.setdefault(step, set()).add(digest)
        return {step for step, found in versions.items() if len(found) > 1}


@dataclass
class Bench:
    """A coordinator without a run directory."""

    agreement: Agreement
    model: nn.Module
    execution: PrivateExecution
    rounds: list[Round]
    ledger: Path

    def source(self, parties: Parties, *, fewest: int = 1) -> FederatedGradients:
        return FederatedGradients(self.agreement, self.execution, self.model, parties, self.rounds.append, fewest=fewest)

    def request(self, step: int = 0) -> Request:
        weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return Request(self.agreement.sha256, step, weights, weights_digest(self.model))


def bench(agreement: Agreement, folder: Path, *, seed: int = 5) -> Bench:
    torch.manual_seed(seed)
    model = run_network(agreement.config, Own(), public())
    parameters = sum(value.numel() for value in model.parameters())
    ledger = Ledger.create(folder / "ledger.jsonl", config_sha256="0" * 64, delta=agreement.config.delta)
    execution = PrivateExecution(agreement.plan, repeatable_key(seed, "noise"), ledger, records=0, parameters=parameters)
    return Bench(agreement, model, execution, [], folder / "ledger.jsonl")


def local(found: Mapping[str, Answering]) -> LocalParties:
    return LocalParties(found)
