"""A coordinator that is killed goes on, and no two versions of one step's weights, which share their noise, ever leave it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from federations import Watched, agreed, local, members, public

from twinproof.auditing.verify import verify_run
from twinproof.errors import RunError
from twinproof.federated.coordinator import read_rounds
from twinproof.federated.messages import Parties, Reply, Request
from twinproof.federated.train import federate
from twinproof.recipes import train as train_module
from twinproof.runs.run import Run
from twinproof.training import loop


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


class KillAt:
    """A function that kills at its n-th call, before or after it does its work."""

    def __init__(self, inner: Any, number: int, *, after: bool) -> None:
        self.inner, self.left, self.after = inner, number, after

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        result = self.inner(*arguments, **named)
        if self.left == 0:
            raise Killed
        return result


class Fickle:
    """Party 4 answers every second time that it is asked."""

    def __init__(self, inner: Parties) -> None:
        self._inner = inner
        self._calls = 0

    def ask(self, request: Request) -> Sequence[Reply]:
        self._calls += 1
        replies = self._inner.ask(request)
        return [reply for reply in replies if reply.sender != "party-4" or self._calls % 2]


def go(root: Path, parties: Parties, *, resume: bool = False, **changes: Any) -> Run:
    return federate(agreed(**changes), parties, public(), root, resume=resume)


def kill(root: Path, parties: Parties, monkeypatch: pytest.MonkeyPatch, place: str, number: int, *, after: bool) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(train_module, place, KillAt(getattr(train_module, place), number, after=after))
        with pytest.raises(Killed):
            go(root, parties)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return go(tmp_path_factory.mktemp("whole") / "run", local(members(agreed())))


@pytest.mark.parametrize(
    ("place", "number", "after"),
    [
        ("save_checkpoint", 1, False),
        ("save_checkpoint", 1, True),
        ("save_checkpoint", 4, False),
        ("save_checkpoint", 6, True),
        ("finish_run", 1, False),
        ("finish_run", 1, True),
        ("write_run_json", 1, False),
        ("write_run_json", 1, True),
    ],
)
def test_a_killed_coordinator_resumes_to_the_same_bits(
    tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch, place: str, number: int, after: bool
) -> None:
    watched = Watched(local(members(agreed())))
    kill(tmp_path / "run", watched, monkeypatch, place, number, after=after)
    run = go(tmp_path / "run", watched, resume=True)
    assert run.model_sha256 == uninterrupted.model_sha256
    assert run.epsilon == uninterrupted.epsilon
    assert run.record["guarantees"] == uninterrupted.record["guarantees"]
    assert [happened.step for happened in read_rounds(run.layout.private)] == list(range(6))
    assert verify_run(run.root).problems == ()
    assert not watched.steps_with_two_versions()


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_before_any_write_is_mended(stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places at which something is made safe on the disk, in a run of two steps, with a party that answers by chance."""
    count = KillAt(os.fsync, -1, after=False)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", count)
        go(tmp_path / "whole", local(members(agreed(steps=2))), steps=2)
    writes = -1 - count.left
    assert writes > 20
    for number in range(1, writes + 1, stride):
        root, watched = tmp_path / str(number), Watched(Fickle(local(members(agreed(steps=2)))))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", KillAt(os.fsync, number, after=False))
            with pytest.raises(Killed):
                go(root, watched, steps=2)
        run = go(root, watched, resume=True, steps=2)
        assert verify_run(run.root).problems == (), number
        assert not watched.steps_with_two_versions(), number


@pytest.mark.parametrize("after", [False, True])
def test_no_two_versions_of_a_step_leave_when_a_party_answers_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Otherwise their difference, in which the noise cancels, is a party's bare sum."""
    watched = Watched(Fickle(local(members(agreed()))))
    kill(tmp_path / "run", watched, monkeypatch, "save_checkpoint", 4, after=after)
    go(tmp_path / "run", watched, resume=True)
    assert len(watched.sent) == (6 if after else 7)
    assert not watched.steps_with_two_versions()


def seldom(*arguments: Any, step: int, **named: Any) -> None:
    """The planted bug: checkpoints every third step, as a pooled run may make them."""
    if step % 3 == 0:
        loop.save_checkpoint(*arguments, step=step, **named)


def test_a_checkpoint_now_and_then_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "save_checkpoint", seldom)
    watched = Watched(Fickle(local(members(agreed()))))
    kill(tmp_path / "run", watched, monkeypatch, "save_checkpoint", 5, after=True)
    forgetful = Watched(Fickle(local(members(agreed()))), watched.sent)  # parties that were started anew, too
    go(tmp_path / "run", forgetful, resume=True)
    assert watched.steps_with_two_versions()


def test_parties_stop_a_coordinator_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bug, and parties that remember which weights they have seen."""
    monkeypatch.setattr(train_module, "save_checkpoint", seldom)
    parties = Fickle(local(members(agreed())))
    kill(tmp_path / "run", parties, monkeypatch, "save_checkpoint", 5, after=True)
    with pytest.raises(RunError, match="too few parties") as stopped:
        go(tmp_path / "run", parties, resume=True)
    assert "again with other weights" in stopped.value.got


def test_a_round_without_answers_can_be_repeated(tmp_path: Path, uninterrupted: Run) -> None:
    class Away(Fickle):
        def ask(self, request: Request) -> Sequence[Reply]:
            self._calls += 1
            return [] if self._calls == 3 else self._inner.ask(request)

    parties = Away(local(members(agreed())))
    with pytest.raises(RunError, match="too few parties"):
        go(tmp_path / "run", parties)
    assert go(tmp_path / "run", parties, resume=True).model_sha256 == uninterrupted.model_sha256


@pytest.mark.parametrize("changes", [{"clip_norm": 0.2}, {"steps": 7}, {"seed": 4}])
def test_another_agreement_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    parties = local(members(agreed()))
    kill(tmp_path / "run", parties, monkeypatch, "save_checkpoint", 2, after=True)
    with pytest.raises(RunError, match="not the agreement"):
        go(tmp_path / "run", parties, resume=True, **changes)


def test_a_pooled_run_is_not_continued_with_parties(trained: Path) -> None:
    with pytest.raises(RunError, match="not the agreement"):
        go(trained, local({}), resume=True)


def test_a_complete_run_is_opened(uninterrupted: Run) -> None:
    assert go(uninterrupted.root, local({}), resume=True).model_sha256 == uninterrupted.model_sha256
