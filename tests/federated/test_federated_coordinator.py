"""The coordinator's round: who is counted, what is released, and what the number of answers cannot change."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import NAMES, Bench, Cheat, Scripted, agreed, bench, local, members, with_sums, zeros
from torch import Tensor

from twinproof.errors import RunError
from twinproof.federated import coordinator
from twinproof.federated.coordinator import FederatedGradients
from twinproof.federated.local import LocalParties
from twinproof.federated.messages import Failure, Reply, Request, Update


@pytest.fixture
def work(tmp_path: Path) -> Bench:
    return bench(agreed(), tmp_path)


def flat(gradient: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in gradient.values()])


def twin(work: Bench, folder: Path) -> Bench:
    """A second coordinator with the same network and the same noise."""
    folder.mkdir()
    return bench(work.agreement, folder)


def test_the_sums_of_all_parties_are_released_with_the_plans_noise(work: Bench, tmp_path: Path) -> None:
    """Against the plan's own release of the sum, which is added up here."""
    found = work.source(local(members(work.agreement))).gradient(0)
    updates = [one.answer(work.request()) for one in members(work.agreement).values()]
    total = {name: torch.from_numpy(sum((update.sums[name] for update in updates), np.zeros(1))) for name in updates[0].sums}
    other = twin(work, tmp_path / "other")
    wanted = other.execution.release(other.execution.draw(0), total)
    torch.testing.assert_close(flat(found), flat(wanted), rtol=0, atol=2 * work.agreement.plan.grid)
    assert work.rounds[0].drawn == {update.party: update.drawn for update in updates}


def test_the_order_of_arrival_changes_no_bit(work: Bench, tmp_path: Path) -> None:
    replies = local(members(work.agreement)).ask(work.request())
    other = twin(work, tmp_path / "other")
    first = work.source(Scripted(lambda _: replies)).gradient(0)
    second = other.source(Scripted(lambda _: reversed(replies))).gradient(0)
    assert torch.equal(flat(first), flat(second))


def test_a_step_is_on_the_disk_before_a_party_is_asked(work: Bench) -> None:
    seen: list[list[Any]] = []

    def answer(request: Request) -> Iterable[Reply]:
        lines = [json.loads(line) for line in work.ledger.read_text().splitlines()]
        seen.append([(line["kind"], line["body"].get("steps")) for line in lines])
        return [Reply("party-1", zeros("party-1", work.agreement, request, work.model))]

    work.source(Scripted(answer)).gradient(0)
    assert seen == [[("open", None), ("poisson-gaussian", 6)]]


def replays(work: Bench) -> Update:
    """What party 1 sent in the round before."""
    return members(work.agreement)["party-1"].answer(work.request(0))


def cheats(work: Bench) -> dict[str, tuple[Cheat, str]]:
    inner, old = members(work.agreement)["party-1"], replays(work)
    return {
        "NaN": (Cheat(inner, lambda update, _: with_sums(update, lambda sums: sums * np.nan)), "not finite"),
        "shape": (Cheat(inner, lambda update, _: with_sums(update, np.ravel)), "shape"),
        "too large": (Cheat(inner, lambda update, _: with_sums(update, lambda sums: sums + 1e3)), "long"),
        "replayed": (Cheat(inner, lambda update, request: old), "step 0, not of step 1"),
        "stale weights": (Cheat(inner, lambda update, _: replace(update, weights_sha256="0" * 64)), "other weights"),
    }


@pytest.mark.parametrize("lie", ["NaN", "shape", "too large", "replayed", "stale weights"])
def test_a_party_that_cheats_is_refused_by_name_and_the_round_goes_on(work: Bench, tmp_path: Path, lie: str) -> None:
    cheat, reason = cheats(work)[lie]
    honest, other = members(work.agreement), twin(work, tmp_path / "other")
    found = work.source(local({**honest, "party-1": cheat})).gradient(1)
    (refused,) = work.rounds[0].refused
    assert refused.party == "party-1"
    assert reason in refused.reason
    assert set(work.rounds[0].drawn) == {"party-2", "party-3", "party-4"}
    without = {name: one for name, one in members(work.agreement).items() if name != "party-1"}
    assert torch.equal(flat(found), flat(other.source(local(without)).gradient(1)))
    assert other.rounds[0].missing == ("party-1",)


def test_a_name_from_outside_is_made_fit_to_be_shown(work: Bench) -> None:
    """A node may call itself anything: what clears a terminal, or a name as long as a book."""
    name = "\x1b[2Jnorth\n\u202e" + "x" * 500
    parties = Scripted(lambda request: [Reply(name, Failure("the node names nobody of the agreement"))])
    with pytest.raises(RunError, match="too few parties") as error:
        work.source(parties).gradient(0)
    (refused,) = work.rounds[0].refused
    for shown in (refused.party, error.value.got):
        assert shown.isprintable()
        assert "?[2Jnorth??xxx" in shown
        assert len(shown) < 400


def test_a_second_update_of_a_party_is_refused(work: Bench, tmp_path: Path) -> None:
    replies, other = local(members(work.agreement)).ask(work.request()), twin(work, tmp_path / "other")
    found = work.source(Scripted(lambda _: [*replies, *replies])).gradient(0)
    assert [one.party for one in work.rounds[0].refused] == list(NAMES)
    assert {one.reason for one in work.rounds[0].refused} == {"a second update in one round"}
    assert torch.equal(flat(found), flat(other.source(Scripted(lambda _: replies)).gradient(0)))


def moved_by_a_huge_update(work: Bench) -> float:
    cheat, _ = cheats(work)["too large"]
    return float(flat(work.source(local({**members(work.agreement), "party-1": cheat})).gradient(1)).abs().max())


def test_a_coordinator_that_forgets_the_norm_is_moved(work: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug, and what the check is worth: a thousand clipping norms on every weight."""
    other = twin(work, tmp_path / "other")
    assert moved_by_a_huge_update(work) < 1
    monkeypatch.setattr(coordinator, "refusal", lambda reply, expected: None)
    assert moved_by_a_huge_update(other) > 7


class NoiseByAnswers(FederatedGradients):
    """The planted bug: noise for as many parties as answered."""

    answered = 1

    def _round(self, step: int) -> dict[str, Update]:
        counted = super()._round(step)
        self.answered = len(counted)
        return counted

    def gradient(self, step: int) -> dict[str, Tensor]:
        return {name: value * self.answered**0.5 for name, value in super().gradient(step).items()}


def noise_ratio(work: Bench, kind: type[FederatedGradients], answering: int) -> float:
    """Variance of what is released when nobody's records add anything, over the plan's; 100 steps of some 5,000 numbers."""

    def answer(request: Request) -> Iterable[Reply]:
        return [Reply(name, zeros(name, work.agreement, request, work.model)) for name in NAMES[:answering]]

    plan = work.agreement.plan
    source = kind(work.agreement, work.execution, work.model, Scripted(answer), work.rounds.append)
    numbers = torch.cat([flat(source.gradient(step)) for step in range(plan.steps)])
    deviation = plan.noise_multiplier * plan.clip_norm / plan.divisor
    return float(numbers.square().mean()) / deviation**2


@pytest.mark.parametrize("answering", [1, 4])
def test_noise_does_not_depend_on_who_answers(tmp_path: Path, answering: int) -> None:
    work = bench(agreed(steps=100), tmp_path)
    ratio = noise_ratio(work, FederatedGradients, answering)
    parameters = sum(value.numel() for value in work.model.parameters())
    # Six standard errors of the mean of so many squares: a false alarm below 1e-8.
    assert abs(ratio - 1) < 6 * (2 / (100 * parameters)) ** 0.5 < 0.02


@pytest.mark.parametrize("answering", [2, 4])
def test_noise_scaled_by_the_answers_is_caught(tmp_path: Path, answering: int) -> None:
    ratio = noise_ratio(bench(agreed(steps=100), tmp_path), NoiseByAnswers, answering)
    assert abs(ratio - 1) > 0.5


def test_without_any_answer_nothing_is_released(work: Bench) -> None:
    source = work.source(Scripted(lambda _: []))
    with pytest.raises(RunError, match="too few parties") as stopped:
        source.gradient(0)
    assert "party-3: no answer in time" in stopped.value.got
    assert work.rounds[0].missing == NAMES


def test_as_many_answers_are_needed_as_was_asked_for(work: Bench) -> None:
    def answer(request: Request) -> Iterable[Reply]:
        return [Reply(name, zeros(name, work.agreement, request, work.model)) for name in NAMES[:2]]

    with pytest.raises(RunError, match="too few parties"):
        work.source(Scripted(answer), fewest=3).gradient(0)
    work.source(Scripted(answer), fewest=2).gradient(0)


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


def test_an_error_comes_back_by_name_and_without_its_values(work: Bench) -> None:
    (reply,) = LocalParties({"party-1": Broken()}).ask(work.request())
    assert reply.sender == "party-1"
    assert reply.content == Failure("the disk is full")


def test_who_is_late_is_missing_and_not_asked_again_while_busy(work: Bench) -> None:
    slow = Slow(threading.Event())
    parties = LocalParties({"party-1": slow, "party-2": members(work.agreement)["party-2"]}, timeout=3)
    for step in range(2):
        assert [reply.sender for reply in parties.ask(work.request(step))] == ["party-2"]
    assert slow.asked == 1
    slow.gate.set()
    parties._busy["party-1"].join(10)
    assert [reply.sender for reply in parties.ask(work.request(2))] == ["party-1", "party-2"]
