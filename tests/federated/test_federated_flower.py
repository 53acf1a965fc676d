"""Flower as the way to the parties; skipped where it is not installed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed (twinproof[federated])")

from federations import NAMES, Cheat, agreed, bench, digits, local, members, public, shares, with_sums
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from twinproof.auditing.verify import verify_run
from twinproof.errors import ConfigError, RunError
from twinproof.federated.coordinator import read_rounds
from twinproof.federated.flower import (
    ARRAYS,
    FIELDS,
    FlowerParties,
    client_app,
    read_name,
    read_request,
    read_update,
    request_content,
    server_app,
    update_content,
)
from twinproof.federated.local import Answering
from twinproof.federated.messages import Failure, Request, Update
from twinproof.federated.party import Party
from twinproof.federated.train import federate
from twinproof.runs.run import Run
from twinproof.training.loop import weights_digest


@pytest.fixture(autouse=True)
def inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower stamps messages with the task that its runtime has started; here there is no runtime."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)


def context(node: int = 0) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


class Wire(Grid):  # type: ignore[misc]
    """A grid whose nodes are ClientApps in this process; those in ``silent`` are connected and never answer."""

    def __init__(self, apps: dict[int, ClientApp], silent: tuple[int, ...] = ()) -> None:
        self.apps, self.silent = apps, silent
        self.timeouts: list[float | None] = []

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self.timeouts.append(timeout)
        to = {message.metadata.dst_node_id: message for message in messages}
        return [self.apps[node](message, context(node)) for node, message in to.items() if node not in self.silent]


class Named:
    """What ``client_app`` needs of a party, around one that cheats."""

    def __init__(self, name: str, inner: Answering) -> None:
        self.name = name
        self.answer = inner.answer


def apps(found: dict[str, Answering]) -> dict[int, ClientApp]:
    return {number: app(name, one) for number, (name, one) in enumerate(found.items(), start=10)}


def app(name: str, inner: Answering) -> ClientApp:
    return client_app(lambda _: Named(name, inner))


def message(content: RecordDict) -> Message:
    return Message(content, 10, "train")


def test_a_request_arrives_bit_by_bit(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    sent = work.request(3)
    got = read_request(message(request_content(sent)))
    assert (got.agreement, got.step, got.weights_sha256) == (sent.agreement, 3, sent.weights_sha256)
    work.model.load_state_dict({name: value * 0 for name, value in sent.weights.items()})
    work.model.load_state_dict(dict(got.weights))
    assert weights_digest(work.model) == sent.weights_sha256


def test_an_update_arrives_bit_by_bit(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    sent = members(work.agreement)["party-1"].answer(work.request())
    got = read_update(message(update_content(sent)))
    assert isinstance(got, Update)
    assert (got.party, got.step, got.drawn, got.weights_sha256) == (sent.party, 0, sent.drawn, sent.weights_sha256)
    assert all(
        np.array_equal(got.sums[name], value) and got.sums[name].dtype == np.float64 for name, value in sent.sums.items()
    )


FIELDS_ONLY = RecordDict({FIELDS: ConfigRecord({"party": "party-1", "step": 0, "drawn": 0, "weights_sha256": ""})})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        FIELDS_ONLY,
        RecordDict({FIELDS: ConfigRecord({}), ARRAYS: ArrayRecord({})}),
        RecordDict({FIELDS: ArrayRecord({}), ARRAYS: ConfigRecord({})}),
        RecordDict({**FIELDS_ONLY, ARRAYS: ArrayRecord({"weight": Array("float64", (2,), "numpy.ndarray", b"no array")})}),
        RecordDict({**FIELDS_ONLY, ARRAYS: ArrayRecord({"weight": Array("float64", (2,), "pickle", b"")})}),
        # An array of objects would have to be unpickled.
        RecordDict(
            {
                **FIELDS_ONLY,
                ARRAYS: ArrayRecord(
                    {
                        "weight": Array(
                            "object",
                            (1,),
                            "numpy.ndarray",
                            b"\x93NUMPY\x01\x00F\x00"
                            + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(69)
                            + b"\n",
                        )
                    }
                ),
            }
        ),
    ],
)
def test_what_cannot_be_read_is_a_failure(content: RecordDict) -> None:
    found = read_update(message(content))
    assert isinstance(found, Failure)
    assert "cannot be read" in found.reason
    with pytest.raises(RunError, match="request cannot be read"):
        read_request(message(content))


def test_a_run_over_flower_is_the_run_without_it(tmp_path: Path) -> None:
    agreement = agreed()
    grid = Wire(apps(members(agreement)))
    server_app(agreement, digits(), tmp_path / "flower", timeout=5)(grid, context())
    plain = federate(agreement, local(members(agreement)), public(), tmp_path / "plain")
    found = Run.open(tmp_path / "flower")
    assert found.model_sha256 == plain.model_sha256
    assert verify_run(found.root).problems == ()
    assert set(grid.timeouts) == {5}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sums: sums * np.nan, "not finite"),
        (lambda sums: sums[..., :-1], "has shape"),
        (lambda sums: sums + 1e6, "clipped gradients make at most"),
        (lambda sums: sums.astype(np.float32), "not float64"),
    ],
    ids=["not a number", "another shape", "too large", "another type"],
)
def test_who_cheats_or_is_silent_is_left_out_by_name(
    tmp_path: Path, change: Callable[[np.ndarray[Any, Any]], Any], reason: str
) -> None:
    agreement = agreed()
    honest = members(agreement)
    cheat = Cheat(honest["party-2"], lambda update, _: with_sums(update, change))
    grid = Wire(apps({**honest, "party-2": cheat}))
    parties = FlowerParties(grid, agreement, timeout=5)
    parties.wait()
    grid.silent = (12,)
    found = federate(agreement, parties, public(), tmp_path / "run")
    rounds = read_rounds(found.layout.private)
    assert len(rounds) == 6
    for happened in rounds:
        assert [one.party for one in happened.refused] == ["party-2"]
        assert reason in happened.refused[0].reason
        assert set(happened.drawn) == {"party-1", "party-4"}
        assert happened.missing == ("party-3",)


def test_a_partys_own_error_comes_back_without_its_values(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    other = agreed(clip_norm=0.2)
    grid = Wire(apps(members(other)))
    replies = FlowerParties(grid, work.agreement).ask(work.request())
    assert {reply.sender for reply in replies} == set(NAMES)
    assert all(reply.content == Failure("the request is of another agreement") for reply in replies)


class Crashes:
    def answer(self, request: Request) -> Update:
        raise ValueError("the diagnosis of record 17 is no number")


def test_a_party_that_crashes_tells_the_type_alone_and_its_owner_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = bench(agreed(), tmp_path)
    grid = Wire(apps({**members(work.agreement), "party-2": Crashes()}))
    replies = {reply.sender: reply.content for reply in FlowerParties(grid, work.agreement).ask(work.request())}
    assert replies["party-2"] == Failure("the party failed: ValueError")
    assert sum(isinstance(content, Update) for content in replies.values()) == 3
    assert "record 17" in caplog.text


def test_who_is_refused_is_in_the_log_of_a_coordinator_that_nobody_watches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agreement = agreed(steps=1)
    with caplog.at_level(logging.WARNING):
        server_app(agreement, public(), tmp_path / "run", timeout=5)(
            Wire(apps({**members(agreement), "party-3": Crashes()})), context()
        )
    assert "round 0: party-3 is refused: the party failed: ValueError" in caplog.messages


@pytest.mark.parametrize("seconds", [0.0, math.nan, math.inf])
def test_a_time_that_no_clock_can_wait_is_refused_before_anything_starts(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ConfigError, match="this time for a round"):
        server_app(agreed(), public(), tmp_path / "run", timeout=seconds)
    with pytest.raises(ConfigError, match="this time for a round"):
        FlowerParties(Wire({}), agreed(), timeout=seconds)


def test_a_second_node_of_one_name_is_not_asked(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    found = members(work.agreement)
    grid = Wire({**apps(found), 99: app("party-1", found["party-2"])})
    replies = FlowerParties(grid, work.agreement).ask(work.request())
    by_name = [reply for reply in replies if reply.sender == "party-1"]
    assert [isinstance(reply.content, Failure) for reply in by_name] == [False, True]


def test_weights_do_not_go_to_a_node_of_nobody(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    found = members(work.agreement)
    stranger = Cheat(found["party-2"], lambda update, request: pytest.fail("it was asked"))
    grid = Wire({**apps(found), 99: app("mallory", stranger)})
    replies = FlowerParties(grid, work.agreement).ask(work.request())
    assert [reply.content for reply in replies if reply.sender == "mallory"] == [
        Failure("the node names nobody of the agreement")
    ]
    assert len(replies) == 5


def test_a_silent_stranger_is_not_waited_for_in_every_round(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    grid = Wire({**apps(members(work.agreement)), 99: app("mallory", members(work.agreement)["party-1"])}, silent=(99,))
    parties = FlowerParties(grid, work.agreement)
    for step in range(3):
        assert len(parties.ask(work.request(step))) == 4
    assert len(grid.timeouts) == 4  # who are you, and three rounds


def test_a_node_that_is_gone_makes_room(tmp_path: Path) -> None:
    work = bench(agreed(), tmp_path)
    found = members(work.agreement)
    grid = Wire(apps(found))
    parties = FlowerParties(grid, work.agreement)
    parties.ask(work.request())
    grid.apps[77] = grid.apps.pop(10)
    assert [reply.sender for reply in parties.ask(work.request())].count("party-1") == 1


def test_a_node_that_does_not_say_who_it_is_is_nobody() -> None:
    assert read_name(message(RecordDict())) == Failure("the node does not say which party it is")


def test_a_party_that_cannot_begin_is_heard_of_here_and_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its records are more than it has declared: neither the coordinator nor its owner is left with a timeout alone."""
    work = bench(agreed(), tmp_path)
    found = members(work.agreement)
    begun: list[Context] = []

    def begin(context: Context) -> Party:
        begun.append(context)
        return Party("party-1", shares()["party-4"], work.agreement, public())

    grid = Wire({**apps(found), 10: client_app(begin)})
    parties = FlowerParties(grid, work.agreement)
    parties.wait()
    assert len(begun) == 1, "it is not asked again until the timeout"
    replies = {reply.sender: reply.content for reply in parties.ask(work.request())}
    assert set(replies) == {"node 10", "party-2", "party-3", "party-4"}
    assert replies["node 10"] == Failure("a party has more records than it has declared")
    assert "got: 559" in caplog.text
    grid.apps[10] = app("party-1", found["party-1"])
    assert {reply.sender for reply in parties.ask(work.request())} == set(NAMES)
