"""Flower's simulation: parties that last from message to message, and a coordinator that can be interrupted."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (twinproof[federated])")
pytest.importorskip("ray", reason="Flower's simulation is not installed (twinproof[federated])")

from federations import Bench, agreed, bench, digits, public, settings, shares
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from twinproof.errors import ConfigError, RunError
from twinproof.federated.coordinator import read_rounds
from twinproof.federated.flower import client_app, read_update, request_content
from twinproof.federated.flower_simulation import InterruptibleNodes, simulated_client_app
from twinproof.federated.local import federate_shares
from twinproof.federated.messages import Failure, Request, Update
from twinproof.federated.party import Party
from twinproof.runs.run import Run

cloudpickle: Any = importlib.import_module("ray.cloudpickle")  # what the simulation copies apps with


@pytest.fixture
def inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower stamps messages with the task that its runtime has started; here there is no runtime."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)


def asked(app: ClientApp, request: Request) -> Update | Failure:
    """The answer of party-1 to a message, which the simulation sends with a copy of the app."""
    node = Context(run_id=1, node_id=7, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    copied = cloudpickle.loads(cloudpickle.dumps(app))
    return read_update(copied(Message(request_content(request), 7, "train"), node))


def other_weights(work: Bench, step: int) -> Request:
    work.model.load_state_dict({name: value + 1 for name, value in work.model.state_dict().items()})
    return work.request(step)


@pytest.mark.usefixtures("inside_a_task")
def test_a_party_lasts_from_message_to_message(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    app = simulated_client_app(work.agreement, shares(), public())
    assert isinstance(asked(app, work.request(1)), Update)
    assert asked(app, other_weights(work, 1)) == Failure("a step is asked for again with other weights")
    assert isinstance(asked(app, work.request(2)), Update)


@pytest.mark.usefixtures("inside_a_task")
def test_two_simulations_in_one_process_share_no_party(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    first, second = (simulated_client_app(work.agreement, shares(), public()) for _ in range(2))
    assert isinstance(asked(first, work.request(1)), Update)
    assert isinstance(asked(second, other_weights(work, 1)), Update)


@pytest.mark.usefixtures("inside_a_task")
def test_planted_parties_kept_by_the_app_are_forgotten_with_every_message(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    agreement, records, known = work.agreement, shares()["party-1"], public()
    app = client_app(lambda _: Party("party-1", records, agreement, known))
    assert isinstance(asked(app, work.request(1)), Update)
    assert isinstance(asked(app, other_weights(work, 1)), Update)


@dataclass
class Letter:
    """As much of a message as the way back needs."""

    reply_to_message_id: str

    @property
    def metadata(self) -> Letter:
        return self


@dataclass
class Post:
    """A grid whose answers are there after so many looks; each is handed out once."""

    looks_until: dict[str, int] = field(default_factory=dict)
    looks: int = 0

    def get_node_ids(self) -> Iterable[int]:
        return [1, 2]

    def push_messages(self, messages: Iterable[str]) -> Iterable[str]:
        return list(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Letter]:
        self.looks += 1
        found = [name for name in message_ids if self.looks_until.get(name, 10**9) <= self.looks]
        for name in found:
            del self.looks_until[name]
        return [Letter(name) for name in found]


def names(answers: Iterable[Any]) -> list[str]:
    return [answer.reply_to_message_id for answer in answers]


def test_answers_come_early_and_late_and_nobody_is_waited_for_afterwards() -> None:
    post = Post({"a": 3, "b": 1})
    nodes = InterruptibleNodes(post, threading.Event())
    assert list(nodes.get_node_ids()) == [1, 2]
    assert names(nodes.send_and_receive(["a", "b"], timeout=600)) == ["b", "a"]
    assert post.looks == 3
    assert names(nodes.send_and_receive([], timeout=600)) == []


def test_a_missing_answer_costs_the_timeout_and_no_other_answer() -> None:
    began = time.monotonic()
    assert names(InterruptibleNodes(Post({"b": 1}), threading.Event()).send_and_receive(["b", "c"], timeout=0.5)) == ["b"]
    assert time.monotonic() - began >= 0.5


def test_an_interrupted_coordinator_waits_for_nobody() -> None:
    stopped = threading.Event()
    threading.Timer(0.2, stopped.set).start()
    began = time.monotonic()
    with pytest.raises(RunError, match="interrupted"):
        InterruptibleNodes(Post(), stopped).send_and_receive(["a"], timeout=600)
    with pytest.raises(RunError, match="interrupted"):  # nor for the first node
        InterruptibleNodes(Post(), stopped).get_node_ids()
    assert time.monotonic() - began < 300


def test_no_time_at_all_is_refused_here_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this time for a round"):
        federate_shares(settings(steps=4), digits(), tmp_path / "run", flower=True, timeout=0.0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_example_runs_over_flowers_own_simulation(tmp_path: Path) -> None:
    found = federate_shares(settings(steps=4), digits(), tmp_path / "run", flower=True, timeout=120)
    plain = federate_shares(settings(steps=4), digits(), tmp_path / "plain")
    assert found.model_sha256 == plain.model_sha256
    assert [happened.missing for happened in read_rounds(found.layout.private)] == [()] * 4
    assert [party["records"] for party in found.record["federation"]["parties"]] == [len(share) for share in shares().values()]


@pytest.mark.slow
def test_an_interrupted_simulation_ends_and_goes_on(tmp_path: Path) -> None:
    root, rounds = tmp_path / "run", tmp_path / "run" / "private" / "rounds.jsonl"
    command = [sys.executable, "-m", "twinproof", "federate", "--data", "digits", "--flower", "--seed", "1", "--delta", "1e-4"]
    command += ["--out", str(root), "--recipe", "dpsgd", "--device", "cpu"]
    command += ["--set", "model=mlp", "--set", "noise_multiplier=20.0", "--set", "steps=40"]
    # A parent that ignores Ctrl-C, as a shell's background does, would hand that down; here it is what is tried.
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True
    )
    end = time.monotonic() + 200
    while not (rounds.is_file() and rounds.stat().st_size) and running.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=120)  # Flower's own way would wait for ten minutes
    assert running.returncode == 130
    assert "Traceback" not in said
    assert len(read_rounds(root / "private")) < 40
    again = subprocess.run([*command, "--resume"], check=False, capture_output=True, timeout=300)
    assert again.returncode == 0
    assert Run.open(root).record["state"] == "complete"
