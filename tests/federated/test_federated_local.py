"""Parties in one process: their errors, and their time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from federations import Bench, agreed, bench, members

from twinproof.errors import RunError
from twinproof.federated.local import LocalParties
from twinproof.federated.messages import Failure, Request, Update


@dataclass
class Slow:
    gate: threading.Event
    asked: int = 0

    def answer(self, request: Request) -> Update:
        self.asked += 1
        self.gate.wait(60)
        return Update("party-1", request.step, 0, {}, request.weights_sha256)


class Broken:
    def answer(self, request: Request) -> Update:
        raise RunError("the disk is full", got="a value that may depend on records")


def work(folder: Path) -> Bench:
    return bench(agreed(), folder)


def test_an_error_comes_back_by_name_and_without_its_values(tmp_path: Path) -> None:
    (reply,) = LocalParties({"party-1": Broken()}).ask(work(tmp_path).request())
    assert reply.sender == "party-1"
    assert reply.content == Failure("the disk is full")


def test_who_is_late_is_missing_and_not_asked_again_while_busy(tmp_path: Path) -> None:
    found, slow = work(tmp_path), Slow(threading.Event())
    parties = LocalParties({"party-1": slow, "party-2": members(found.agreement)["party-2"]}, timeout=3)
    for step in range(2):
        assert [reply.sender for reply in parties.ask(found.request(step))] == ["party-2"]
    assert slow.asked == 1
    slow.gate.set()
    parties._busy["party-1"].join(10)
    assert [reply.sender for reply in parties.ask(found.request(2))] == ["party-1", "party-2"]
