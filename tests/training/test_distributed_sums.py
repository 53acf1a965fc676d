"""The step of several ranks is the step of one: the same sum, and the plan's noise added exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_problems import CPU, KEY, PLAN, Gradients, distance, hand_step, network, problem, training_split

from rank_processes import Ended, quick_to_part, run_ranks
from twinproof.compute.process_ranks import ProcessRanks
from twinproof.compute.ranks import ALONE, Ranks, Share
from twinproof.errors import TwinproofError
from twinproof.keys import KEY_BYTES, Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Plan, PrivateExecution
from twinproof.training.loop import SharedLedger, mean_cross_entropy
from twinproof.training.passes import Augmentation, Batching, DeviceRecords, GaussianCopies, Repeats
from twinproof.training.per_example.fast import FastPath
from twinproof.training.sources import (
    ClippedPass,
    ClippedSums,
    HostStepSums,
    PlainGradients,
    PrivateGradients,
    clipped_over_ranks,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ROWS, STEPS = 3, 3
# The variance of so many normal numbers has a relative deviation of 0.098 %: 0.5 % is five of them, 6e-7 by chance.
COORDINATES = 2_100_000
TOLERANCE = 0.005
NOISE_PLAN = Plan(sample_rate=0.5, noise_multiplier=1.3, clip_norm=2.0, divisor=4.0, steps=5, delta=1e-5)


def shared_step(ranks: Ranks, folder: Path, augmentation: Augmentation, step: int) -> dict[str, list[float]]:
    """One rank's gradient of a step, and what it saw."""
    ranks_folder = folder / f"{ranks.world}-{ranks.rank}"
    given = problem(ranks_folder, rows=ROWS, augmentation=augmentation)
    shapes = {name: value.detach() for name, value in given.model.named_parameters()}
    count = sum(value.numel() for value in shapes.values())
    execution = PrivateExecution(PLAN, KEY, given.ledger, records=len(given.records), parameters=count)
    path = FastPath(given.model, mean_cross_entropy)
    source = PrivateGradients(execution, path, given.batching, shapes, ranks=ranks)
    found = source.gradient(step)
    assert source.last is not None
    seen = [source.last.drawn, source.last.clipped, source.last.non_finite]
    return {**{name: value.flatten().tolist() for name, value in found.items()}, "seen": [float(value) for value in seen]}


def as_gradients(value: dict[str, list[float]], model: nn.Module) -> Gradients:
    return {name: torch.tensor(value[name], dtype=torch.float64).view_as(like) for name, like in model.named_parameters()}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_step_is_dp_sgd_by_the_book(world: int, tmp_path: Path) -> None:
    wanted = hand_step(problem(tmp_path / "alone", rows=ROWS), 2)
    ends = run_ranks(world, lambda ranks: shared_step(ranks, tmp_path, Repeats(), 2))
    assert all(ended.value == ends[0].value for ended in ends), "the ranks release the same bits"
    assert distance(as_gradients(ends[0].value, network()), wanted) < 1e-8


@pytest.mark.parametrize("world", [2, 4])
def test_noisy_copies_are_those_of_one_process(world: int, tmp_path: Path) -> None:
    augmentation = GaussianCopies(2, 0.2)
    alone = problem(tmp_path / "alone", rows=ROWS, augmentation=augmentation)
    wanted = alone.source.gradient(1)
    assert alone.source.last is not None
    ends = run_ranks(world, lambda ranks: shared_step(ranks, tmp_path, augmentation, 1))
    assert distance(as_gradients(ends[-1].value, network()), wanted) < 1e-9
    assert ends[0].value["seen"] == [alone.source.last.drawn, alone.source.last.clipped, alone.source.last.non_finite]


def sum_of_every_tensor(part: ClippedSums, ranks: Ranks) -> ClippedSums:
    """The waste: a message for each parameter."""
    return ClippedSums({name: ranks.sum_in_order(value.flatten()) for name, value in part.by_name.items()}, part.counts)


@pytest.mark.parametrize(("summed", "messages"), [(clipped_over_ranks, 1), (sum_of_every_tensor, 4)])
def test_a_step_is_one_message_however_many_passes_and_layers(
    summed: Callable[[ClippedSums, Ranks], ClippedSums], messages: int, tmp_path: Path
) -> None:
    def work(ranks: Ranks) -> int:
        assert isinstance(ranks, ProcessRanks)
        sent, honest = [], ranks._all

        def counted(part: Tensor) -> list[Tensor]:
            sent.append(len(part))
            return honest(part)

        vars(ranks)["_all"] = counted
        given = problem(tmp_path / str(ranks.rank), rows=ROWS)
        shapes = {name: value.detach() for name, value in given.model.named_parameters()}
        clipped = ClippedPass(FastPath(given.model, mean_cross_entropy), lambda norms: torch.ones_like(norms))
        batching = replace(given.batching, share=ranks.share)
        summed(HostStepSums(clipped, batching, shapes).of(torch.arange(len(given.records)), 0), ranks)
        return len(sent)

    assert [ended.value for ended in run_ranks(2, work)] == [messages, messages]


class Overlapping(Share):
    """The bug: the first pass is added by every rank."""

    def own(self, indices: Tensor, size: int) -> Tensor:
        return torch.cat([indices[:size], super().own(indices, size)]) if self.rank else super().own(indices, size)


def test_a_share_that_counts_twice_is_caught(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> dict[str, list[float]]:
        ranks.share = Overlapping(ranks.rank, ranks.world)
        return shared_step(ranks, tmp_path, Repeats(), 2)

    wanted = hand_step(problem(tmp_path / "alone", rows=ROWS), 2)
    found = run_ranks(2, work)[0]
    assert distance(as_gradients(found.value, network()), wanted) > 1e-3


def zeros() -> ClippedSums:
    """The sums of records whose gradients are all zero."""
    return ClippedSums({"weight": torch.zeros(COORDINATES, dtype=torch.float64)}, torch.zeros(2, dtype=torch.int64))


def execution_of(folder: Path, ranks: Ranks, key: Key, plan: Plan = NOISE_PLAN) -> PrivateExecution:
    ledger = Ledger.create(folder / f"{ranks.rank}.jsonl", config_sha256="0" * 64, delta=plan.delta)
    return PrivateExecution(plan, key, ledger, records=40, parameters=COORDINATES)


Release = Callable[[Path, Ranks], Tensor]


def honest(folder: Path, ranks: Ranks) -> Tensor:
    execution = execution_of(folder, ranks, KEY)
    draw = execution.draw(0)
    return execution.release(draw, clipped_over_ranks(zeros(), ranks).by_name)["weight"]


def noise_of_every_rank(folder: Path, ranks: Ranks) -> Tensor:
    """The bug: each rank makes its own part private, and the parts are added."""
    execution = execution_of(folder, ranks, Key(bytes([ranks.rank]) * KEY_BYTES))
    draw = execution.draw(0)
    part = execution.release(draw, zeros().by_name)["weight"]
    return ranks.sum_in_order(part)


def divided_noise(folder: Path, ranks: Ranks) -> Tensor:
    """The bug: each rank's own noise is divided by the number of ranks."""
    return noise_of_every_rank(folder, ranks) / ranks.world


def missing_noise(folder: Path, ranks: Ranks) -> Tensor:
    """A bug by a little: one per cent less deviation."""
    return honest(folder, ranks) * 0.99


def variance_over_plan(release: Release, world: int, folder: Path) -> list[float]:
    """The variance of what each rank released of zero gradients, over the plan's."""
    wanted = (NOISE_PLAN.noise_multiplier * NOISE_PLAN.clip_norm / NOISE_PLAN.divisor) ** 2

    def work(ranks: Ranks) -> float:
        return float(release(folder, ranks).square().mean()) / wanted

    return [float(ended.value) for ended in run_ranks(world, work)]


@pytest.mark.parametrize("world", [2, 4])
def test_the_noise_of_the_released_sum_is_the_plans(world: int, tmp_path: Path) -> None:
    ratios = variance_over_plan(honest, world, tmp_path)
    assert len(set(ratios)) == 1
    assert abs(ratios[0] - 1) < TOLERANCE


@pytest.mark.parametrize(("bug", "ratio"), [(noise_of_every_rank, 2.0), (divided_noise, 0.5), (missing_noise, 0.9801)])
def test_noise_that_is_not_added_once_is_caught(bug: Release, ratio: float, tmp_path: Path) -> None:
    found = variance_over_plan(bug, 2, tmp_path)[0]
    assert abs(found - 1) > TOLERANCE
    assert found == pytest.approx(ratio, rel=TOLERANCE)


def test_plain_gradients_are_shared_too() -> None:
    def source(ranks: Ranks) -> PlainGradients:
        model = network()
        batching = Batching(DeviceRecords(training_split(), 255, CPU, torch.float64), GaussianCopies(2, 0.2), ROWS, KEY)
        return PlainGradients(model, mean_cross_entropy, batching, sample_rate=0.4, divisor=16.0, ranks=ranks)

    def work(ranks: Ranks) -> dict[str, list[float]]:
        return {name: value.flatten().tolist() for name, value in source(ranks).gradient(1).items()}

    wanted = source(ALONE).gradient(1)
    for ended in run_ranks(2, work):
        assert distance(as_gradients(ended.value, network()), wanted) < 1e-12


def ledger_work(folder: Path, other_rate: float) -> Callable[[Ranks], int]:
    """Appends one line on each rank, rank 1's with ``other_rate``; how many lines lie on the disk when it returns."""
    path = folder / "ledger.jsonl"

    def work(ranks: Ranks) -> int:
        if ranks.is_first:
            Ledger.create(path, config_sha256="0" * 64, delta=1e-5)
        ranks.wait()
        ledger = SharedLedger(path, Ledger.load(path).entries, ranks)
        rate = other_rate if ranks.rank == 1 else 0.1
        ledger.append("poisson-gaussian", {"sample_rate": rate, "noise_multiplier": 1.0, "first_step": 0, "steps": 5})
        assert ledger.reserved_steps == 5
        return path.read_bytes().count(b"\n")

    return work


def test_a_line_is_on_the_disk_before_any_rank_goes_on(tmp_path: Path) -> None:
    ends: list[Ended] = run_ranks(3, ledger_work(tmp_path, 0.1))
    assert [ended.value for ended in ends] == [2, 2, 2]
    assert Ledger.load(tmp_path / "ledger.jsonl").reserved_steps == 5, "one rank wrote, once"


def test_a_rank_with_another_ledger_stops_everybody(tmp_path: Path) -> None:
    with quick_to_part():
        ends = run_ranks(2, ledger_work(tmp_path, 0.2))
    for ended in ends:
        assert ended.error is not None
        assert (ended.error["what"], ended.error["where"]) == ("the ranks do not agree on the ledger", "rank 1")


def test_the_ledger_of_one_rank_refuses_what_it_always_refused(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", config_sha256="0" * 64, delta=1e-5)
    with pytest.raises(TwinproofError, match="cannot be added"):
        SharedLedger(tmp_path / "ledger.jsonl", ledger.entries, ALONE).append("gift", {})
