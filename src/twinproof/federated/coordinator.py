"""The coordinator's step: asks the parties, checks what they send, adds it up, and releases it through the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from twinproof.errors import RunError
from twinproof.federated.agreement import Agreement
from twinproof.federated.messages import Expected, Parties, Reply, Request, Update, refusal, sender_of, shown
from twinproof.files import append_line, canonical_json, write_atomic
from twinproof.privacy.plan import PrivateExecution
from twinproof.progress import Progress
from twinproof.runs.reading import Count, read_lines
from twinproof.training.loop import weights_digest
from twinproof.training.per_example.paths import trainable_parameters
from twinproof.training.sources import GradientSource

FILE = "rounds.jsonl"


class Refusal(BaseModel):
    """A party whose reply was not counted, and why. Both came from outside and were made fit to be shown."""

    model_config = ConfigDict(frozen=True)

    party: str
    reason: str


class Round(BaseModel):
    """One round. Sensitive: how many records a party drew depends on its records; it goes to ``private/`` and nowhere else."""

    model_config = ConfigDict(frozen=True)

    step: Count
    drawn: dict[str, Count] = {}
    refused: tuple[Refusal, ...] = ()
    missing: tuple[str, ...] = ()


class RoundLog:
    """Writes ``private/rounds.jsonl``, and tells the user who was refused or missing."""

    def __init__(self, private: Path, progress: Progress) -> None:
        self._path = private / FILE
        self._progress = progress
        self._begun = False

    def __call__(self, happened: Round) -> None:
        """Adds a round. The first one replaces those from its step on that an interrupted session has left."""
        if not self._begun:
            kept = [line for line in read_lines(self._path, Round) if line["step"] < happened.step]
            write_atomic(self._path, "".join(canonical_json(line) + "\n" for line in kept).encode())
            self._begun = True
        append_line(self._path, canonical_json(happened.model_dump(mode="json")))
        for one in happened.refused:
            self._progress.say(f"round {happened.step}: {one.party} is refused: {one.reason}")
        for name in happened.missing:
            self._progress.say(f"round {happened.step}: {name} did not answer in time")


def read_rounds(private: Path) -> list[Round]:
    """All rounds of a run, from its private folder; none where it was not federated."""
    return [Round.model_validate(line) for line in read_lines(private / FILE, Round)]


TRANSPORT = "transport"
"""The name under which a failing transport is noted among the refused."""


class FederatedGradients(GradientSource):
    """The gradient of a step from the parties' sums. ``on_round`` is called with each round before its gradient is released.

    Guarantees
        - The step is in the ledger, on the disk, before a party is asked: ``execution``, made for no records of its own,
          announces it, and adds the noise.
        - What is released is the sum of the updates that passed every check, each party's at most once, plus the plan's noise
          over the plan's divisor. Neither depends on how many parties answered: a missing one costs accuracy, not privacy.
        - Sums are added in the order of the agreement, whenever they arrived.
        - With fewer than ``fewest`` counted parties nothing is released: the run stops, and can be resumed.
        - No reply ends a round: a wrong one is refused with a reason. A transport that fails is noted like a party that
          is refused, and what arrived before counts.
    """

    def __init__(
        self,
        agreement: Agreement,
        execution: PrivateExecution,
        model: nn.Module,
        parties: Parties,
        on_round: Callable[[Round], None],
        *,
        fewest: int = 1,
    ) -> None:
        self._agreement = agreement
        self._execution = execution
        self._model = model
        self._parties = parties
        self._on_round = on_round
        self._fewest = fewest
        self._shapes = {name: tuple(value.shape) for name, value in trainable_parameters(model).items()}

    def gradient(self, step: int) -> dict[str, Tensor]:
        """One round."""
        draw = self._execution.draw(step)
        counted = self._round(step)
        total = {name: np.zeros(shape) for name, shape in self._shapes.items()}
        for party in self._agreement.parties:
            if party.name in counted:
                for name, value in counted[party.name].sums.items():
                    total[name] += value
        return self._execution.release(draw, {name: torch.from_numpy(value) for name, value in total.items()})

    def _round(self, step: int) -> dict[str, Update]:
        """The updates that count, by party."""
        digest = weights_digest(self._model)
        weights = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        request = Request(self._agreement.sha256, step, weights, digest)
        expected = Expected(self._agreement, step, digest, self._shapes)
        counted: dict[str, Update] = {}
        refused: list[Refusal] = []
        heard = set()
        for reply in self._replies(request, refused):
            sender, reason = sender_of(reply), refusal(reply, expected)
            heard.add(sender)
            if reason is None and sender in counted:
                reason = "a second update in one round"
            if reason is not None:
                refused.append(Refusal(party=shown(sender), reason=reason))
            elif isinstance(reply.content, Update):
                counted[sender] = reply.content
        missing = tuple(party.name for party in self._agreement.parties if party.name not in heard)
        drawn = {name: update.drawn for name, update in counted.items()}
        self._on_round(Round(step=step, drawn=drawn, refused=tuple(refused), missing=missing))
        if len(counted) < self._fewest:
            raise _too_few(step, counted, refused, missing, self._fewest)
        return counted

    def _replies(self, request: Request, refused: list[Refusal]) -> Iterator[Reply]:
        """What the transport gives, up to the point where it fails."""
        try:
            yield from self._parties.ask(request)
        except Exception as error:  # noqa: BLE001 (the transport is not ours; what arrived before it failed counts)
            refused.append(Refusal(party=TRANSPORT, reason=f"it failed: {type(error).__name__}"))


def _too_few(step: int, counted: dict[str, Update], refused: list[Refusal], missing: tuple[str, ...], fewest: int) -> RunError:
    reasons = [f"{one.party}: {one.reason}" for one in refused] + [f"{name}: no answer in time" for name in missing]
    return RunError(
        "too few parties can be counted in this round",
        where=f"step {step}",
        got=f"{len(counted)} of them; " + "; ".join(reasons[:5]),
        wanted=f"at least {fewest}",
        fix="mend the parties and resume: nothing of this round was released",
    )
