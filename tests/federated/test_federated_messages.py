"""Every wrong update and every reply that is no update is refused with a reason, and no round ends by it; nothing honest is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import NAMES, Bench, Scripted, agreed, bench, members, public, zeros
from hypothesis import given
from hypothesis import strategies as st

from twinproof.errors import RunError
from twinproof.federated import messages as checks
from twinproof.federated.coordinator import TRANSPORT, Refusal, Round, RoundLog, read_rounds
from twinproof.federated.local import LocalParties
from twinproof.federated.messages import Expected, Failure, Reply, Request, Update, refusal
from twinproof.federated.train import federate
from twinproof.progress import Silent

AGREEMENT = agreed()
CAP = AGREEMENT.caps["party-2"]
CLIP = AGREEMENT.plan.clip_norm
EXPECTED = Expected(AGREEMENT, 4, "w" * 64, {"weight": (2, 3), "bias": (2,)})


def honest(**changes: Any) -> Update:
    """Two records drawn, and a sum that is as long as two clipped gradients can make it."""
    weight, bias = np.zeros((2, 3)), np.zeros(2)
    weight[0, 0] = 2 * CLIP
    return replace(Update("party-2", 4, 2, {"weight": weight, "bias": bias}, "w" * 64), **changes)


def sums(change: Callable[[np.ndarray[Any, Any]], Any]) -> dict[str, Any]:
    found = dict(honest().sums)
    return {"sums": {**found, "weight": change(found["weight"].copy())}}


def with_entry(value: float) -> Callable[[np.ndarray[Any, Any]], Any]:
    def change(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        weight[1, 2] = value
        return weight

    return change


LIES: list[tuple[dict[str, Any], str]] = [
    ({"party": "party-3"}, "comes from party-3"),
    ({"step": 3}, "of step 3, not of step 4"),
    ({"step": 4.0}, "of step 4.0"),
    ({"step": None}, "of step None"),
    ({"weights_sha256": "v" * 64}, "other weights"),
    ({"weights_sha256": None}, "other weights"),
    ({"drawn": CAP + 1}, f"at most {CAP}"),
    ({"drawn": -1}, "-1 records"),
    ({"drawn": True}, "True records"),
    ({"drawn": 2.0}, "2.0 records"),
    ({"sums": {}}, "not those of the network's parameters"),
    ({"sums": {"weight": np.zeros((2, 3))}}, "bias"),
    ({"sums": {**honest().sums, "\x1b[2J": np.zeros(2)}}, r"parameters: \?\[2J"),
    (sums(lambda weight: weight.astype(np.float32)), "float32, not float64"),
    (sums(lambda weight: weight.astype(">f8")), "not float64"),
    (sums(lambda weight: weight.astype(object)), "object, not float64"),
    (sums(lambda weight: weight.tolist()), "list"),
    (sums(lambda weight: weight.T), r"shape \(3, 2\), not \(2, 3\)"),
    (sums(lambda weight: weight[0]), r"shape \(3,\)"),
    (sums(with_entry(float("nan"))), "not finite"),
    (sums(with_entry(float("inf"))), "not finite"),
    (sums(with_entry(-float("inf"))), "not finite"),
    (sums(with_entry(1e200)), "inf long, and 2 clipped gradients"),
    (sums(lambda weight: weight * 1.0001), "2 clipped gradients make at most"),
    ({"drawn": 1}, "1 clipped gradients make at most"),
    ({"drawn": 0}, "0 clipped gradients make at most 0"),
]


@pytest.mark.parametrize(("changes", "reason"), LIES)
def test_a_lie_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    found = refusal(Reply("party-2", honest(**changes)), EXPECTED)
    assert found is not None
    assert found.isprintable()
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found)


def test_an_honest_update_counts() -> None:
    assert refusal(Reply("party-2", honest()), EXPECTED) is None
    assert refusal(Reply("party-2", honest(drawn=CAP)), EXPECTED) is None


def test_who_is_no_party_is_refused() -> None:
    assert refusal(Reply("mallory", honest(party="mallory")), EXPECTED) == "the sender is not a party of the agreement"


def test_a_failure_is_told_without_its_control_characters() -> None:
    assert refusal(Reply("party-2", Failure("disk\x1b[31m full\n")), EXPECTED) == "disk?[31m full?"
    assert len(refusal(Reply("party-2", Failure("x" * 10_000)), EXPECTED) or "") <= 120


@given(st.integers(1, CAP), st.lists(st.floats(-1e300, 1e300), min_size=8, max_size=8))
def test_what_passes_is_never_longer_than_its_draw_allows(drawn: int, entries: list[float]) -> None:
    values = np.array(entries)
    update = honest(drawn=drawn, sums={"weight": values[:6].reshape(2, 3), "bias": values[6:]})
    exact = float(np.sqrt(np.square((values / max(1.0, np.abs(values).max())).astype(np.longdouble)).sum())) * max(
        1.0, float(np.abs(values).max())
    )
    if refusal(Reply("party-2", update), EXPECTED) is None:
        assert exact <= drawn * CLIP * (1 + 2e-9)
    else:
        assert exact > drawn * CLIP


class Hostile:
    """An object that raises whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("boom")

    def __repr__(self) -> str:
        raise RuntimeError("boom")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("boom")

    def __hash__(self) -> int:
        raise RuntimeError("boom")


class Name(str):
    """Text that lies about being equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("party-1")


# Instead of any part of a reply.
JUNK: list[Callable[[], Any]] = [
    lambda: None,
    lambda: "an update",
    lambda: b"\x00\xff",
    lambda: 10**400,
    lambda: float("nan"),
    list,
    dict,
    lambda: {"weight": None},
    lambda: np.zeros(3),
    lambda: np.array([1, None], dtype=object),
    lambda: torch.zeros(2),
    lambda: ValueError("no"),
    lambda: Update,
    lambda: Failure,
    lambda: "\ud800\x1b[2J",
    lambda: Name("party-1"),
    Hostile,
]
FIELDS = ("party", "step", "drawn", "sums", "weights_sha256")
SUMS: list[Callable[[np.ndarray[Any, Any]], Any]] = [
    lambda array: array.astype(np.float32),
    lambda array: array.astype(">f8"),
    lambda array: array.astype(np.complex128),
    lambda array: array.astype(object),
    lambda array: array.astype(str),
    lambda array: array.T[None],
    lambda array: array.reshape(-1)[:-1],
    lambda array: np.full_like(array, np.nan),
    lambda array: np.full_like(array, np.inf),
    lambda array: np.full_like(array, 1e308),
    lambda array: np.ma.masked_array(array, mask=True),
    lambda array: memoryview(array.tobytes()),
    lambda array: array.tolist(),
    lambda array: torch.from_numpy(array),
]


def malformed(honest: Update) -> Iterator[Any]:
    """Every reply of the table: junk for the reply, its content, each field, and each sum."""
    for junk in JUNK:
        yield junk()
        yield Reply("party-1", junk())
        yield Reply(junk(), honest)
        yield Reply("party-1", Failure(junk()))
        for field in FIELDS:
            yield Reply("party-1", replace(honest, **{field: junk()}))
        yield Reply("party-1", replace(honest, sums={junk_key(junk()): np.zeros(2)}))
        yield Reply("party-1", replace(honest, sums={**honest.sums, next(iter(honest.sums)): junk()}))
    for change in SUMS:
        for name, array in honest.sums.items():
            yield Reply("party-1", replace(honest, sums={**honest.sums, name: change(array.copy())}))


def junk_key(value: Any) -> Any:
    try:
        hash(value)
    except Exception:  # noqa: BLE001 (not every junk can be a key)
        return 0
    return value


@pytest.fixture
def table(tmp_path: Path) -> tuple[Bench, list[Any], list[Reply]]:
    """A coordinator, the malformed replies of party-1 to its first request, and honest ones of the others."""
    found = bench(agreed(), tmp_path)
    request = found.request()
    replies = list(malformed(zeros("party-1", found.agreement, request, found.model)))
    others = [Reply(name, zeros(name, found.agreement, request, found.model)) for name in NAMES[1:]]
    return found, replies, others


def test_every_malformed_reply_is_refused_and_the_round_goes_on(
    table: tuple[Bench, list[Any], list[Reply]], tmp_path: Path
) -> None:
    found, replies, others = table
    assert len(replies) > 200
    order = random.Random(0)
    (tmp_path / "log").mkdir()
    log = RoundLog(tmp_path / "log", Silent())
    source = found.source(Scripted(lambda request: []))

    def tell(happened: Round) -> None:
        found.rounds.append(happened)
        log(happened)

    source._on_round = tell
    for number, reply in enumerate(replies):
        arrived = [*others, reply]
        order.shuffle(arrived)
        source._parties = Scripted(lambda request, arrived=arrived: arrived)  # type: ignore[misc]
        counted = source._round(0)
        happened = found.rounds[-1]
        assert set(counted) == set(NAMES[1:]), f"reply {number}"
        (refused,) = happened.refused
        assert refused.reason, f"reply {number}"
        assert refused.reason.isprintable()
        assert refused.party.isprintable()
        assert len(refused.reason) < 400
    assert len(read_rounds(tmp_path / "log")) == len(replies)


def test_without_the_guard_replies_would_end_the_round(table: tuple[Bench, list[Any], list[Reply]]) -> None:
    """The planted bug: checks that look at a reply without a guard."""
    found, replies, _ = table
    request = found.request()
    expected = checks.Expected(found.agreement, 0, request.weights_sha256, found.source(Scripted(lambda _: []))._shapes)
    died = 0
    for reply in replies:
        try:
            checks._refusal(reply, expected)
        except Exception:  # noqa: BLE001 (any is one too many)
            died += 1
    assert died > 0


def test_a_check_with_a_bug_refuses_and_does_not_count(
    table: tuple[Bench, list[Any], list[Reply]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, others = table

    def bug(reply: object, expected: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(checks, "_refusal", bug)
    with pytest.raises(RunError, match="too few parties"):
        found.source(Scripted(lambda request: others))._round(0)
    assert {one.reason for one in found.rounds[-1].refused} == {"the reply cannot be checked: KeyError"}


class FailingTransport:
    """Gives some replies and then breaks, or breaks at once."""

    def __init__(self, replies: Sequence[Reply], error: Exception, *, at_once: bool) -> None:
        self._replies, self._error, self._at_once = replies, error, at_once

    def ask(self, request: Request) -> Any:
        if self._at_once:
            raise self._error

        def given() -> Iterator[Reply]:
            yield from self._replies
            raise self._error

        return given()


@pytest.mark.parametrize(
    "error", [ConnectionResetError("gone"), TimeoutError(), ValueError("x"), RunError("no"), MemoryError()]
)
def test_what_arrived_before_the_transport_failed_counts(error: Exception, table: tuple[Bench, list[Any], list[Reply]]) -> None:
    found, _, others = table
    assert set(found.source(FailingTransport(others, error, at_once=False))._round(0)) == set(NAMES[1:])
    happened = found.rounds[-1]
    assert [(one.party, one.reason) for one in happened.refused] == [(TRANSPORT, f"it failed: {type(error).__name__}")]
    assert happened.missing == ("party-1",)
    with pytest.raises(RunError, match="too few parties") as stopped:
        found.source(FailingTransport([], error, at_once=True))._round(0)
    assert f"{TRANSPORT}: it failed" in stopped.value.got


@pytest.mark.parametrize("answer", [None, "text", 7])
def test_a_transport_that_gives_no_replies_at_all(answer: Any, table: tuple[Bench, list[Any], list[Reply]]) -> None:
    found, _, _ = table

    class Strange:
        def ask(self, request: Request) -> Any:
            return answer

    with pytest.raises(RunError, match="too few parties"):
        found.source(Strange())._round(0)
    assert found.rounds[-1].refused


class Failing:
    """A party with a bug, which shows a value of its records in the text of its error."""

    def answer(self, request: Request) -> Update:
        raise KeyError("patient 17")


class Empty:
    """A party that answers nothing."""

    def answer(self, request: Request) -> Any:
        return None


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_run_with_broken_parties_ends(timeout: float | None, tmp_path: Path) -> None:
    """On 12d5acf the first of these parties ended the coordinator with a traceback."""
    agreement = agreed()
    found = {**members(agreement), "party-1": Failing(), "party-3": Empty()}
    run = federate(agreement, LocalParties(found, timeout=timeout), public(), tmp_path / "run")
    rounds = read_rounds(run.layout.private)
    assert len(rounds) == agreement.config.steps
    for happened in rounds:
        assert {one.party: one.reason for one in happened.refused} == {
            "party-1": "the party failed: KeyError",
            "party-3": "the reply holds NoneType, not an update",
        }
        assert set(happened.drawn) == {"party-2", "party-4"}
    assert "patient 17" not in (run.layout.private / "rounds.jsonl").read_text()


def test_a_round_is_noted_before_the_run_stops(tmp_path: Path) -> None:
    agreement = agreed()
    with pytest.raises(RunError, match="too few parties"):
        federate(agreement, FailingTransport([], OSError("unplugged"), at_once=True), public(), tmp_path / "run")
    (happened,) = read_rounds(tmp_path / "run" / "private")
    assert happened == Round(step=0, refused=(Refusal(party=TRANSPORT, reason="it failed: OSError"),), missing=NAMES)
    run = federate(agreement, LocalParties(members(agreement)), public(), tmp_path / "run", resume=True)
    assert run.record["state"] == "complete"
