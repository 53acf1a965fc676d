"""Algorithm 4's local trainers: who has which batches, who is picked, and a step that any number of ranks makes alike."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from rank_processes import run_ranks
from twinproof.data.config import DataConfig
from twinproof.data.load import load
from twinproof.errors import ConfigError
from twinproof.layers.models.registry import build_network
from twinproof.layers.models.with_noise import with_two_noises
from twinproof.layers.noise import silenced
from twinproof.layers.noise.fixed_draws import FixedDrawsConstraint, with_fixed_draws
from twinproof.randomness import Key
from twinproof.training.adversarial_ensemble import Ensemble
from twinproof.training.distributed.ranks import ALONE, Ranks
from twinproof.training.distributed.share import Share
from twinproof.training.records import DeviceRecords
from twinproof_papers.published.stobatch import ONE_TRAINER as ONE
from twinproof_papers.published.stobatch import (
    LocalTrainers,
    Part,
    PrintedAttacks,
    PrintedTraining,
    PublishedStoBatch,
    fixed_batches,
    rows_of,
)

SHAPE, KEY, BATCH, BATCHES = (1, 8, 8), Key.from_seed(8), 100, 13
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def records() -> DeviceRecords:
    dataset = load(DataConfig(source="digits"))
    return DeviceRecords(dataset.train, dataset.levels, torch.device("cpu"), dtype=torch.float64)


def gradient_by(trainers: LocalTrainers, step: int, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """The gradient of one step, in float64, so that a difference is one of arithmetic and not of rounding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model: nn.Module = with_fixed_draws(with_two_noises(build_network("mlp", SHAPE, 10), SHAPE, 0.02, 0.04), SHAPE).double()
    source = PublishedStoBatch(PrintedTraining(BATCH, 1.0, Ensemble(0.1, 2), trainers), records(), model, KEY, ranks)
    FixedDrawsConstraint().apply(model)
    found = source.gradient(step)
    assert source.last is not None
    assert source.last.drawn == 2 * BATCH * trainers.per_step
    return found


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def batches_of(trainers: LocalTrainers, step: int) -> list[tuple[int, int]]:
    """Which batches are taken as they are and which attacked, by number."""
    numbered = torch.arange(BATCHES).view(-1, 1)
    return [(int(turn.benign), int(turn.attacked)) for turn in trainers.turns(numbered, step, KEY)]


def test_one_trainer_goes_from_batch_to_batch_as_algorithm_1_does() -> None:
    assert [batches_of(ONE, step) for step in (0, 1, 12, 13)] == [[(0, 1)], [(1, 2)], [(12, 0)], [(0, 1)]]
    (turn,) = ONE.turns(torch.arange(4).view(-1, 1), 3, KEY)
    assert turn.key == KEY
    assert [int(value) for value in (turn.benign, turn.attacked)] == [3, 0]


def test_a_trainer_of_two_batches_keeps_their_roles_as_algorithm_4_prints_it() -> None:
    trainers = LocalTrainers(6, 6)
    assert batches_of(trainers, 0) == batches_of(trainers, 1) == [(2 * number, 2 * number + 1) for number in range(6)]


def test_one_of_more_batches_goes_from_batch_to_batch_of_its_own() -> None:
    trainers = LocalTrainers(3, 3)
    assert batches_of(trainers, 5) == [(1, 2), (5, 6), (9, 10)]
    seen = {batch for step in range(8) for pair in batches_of(trainers, step) for batch in pair}
    assert seen == set(range(12)), "the thirteenth is nobody's: all have equally many"


def test_trainers_are_picked_at_random_without_one_twice() -> None:
    trainers, picked = LocalTrainers(6, 2), Counter[int]()
    for step in range(600):
        pairs = batches_of(trainers, step)
        assert len(set(pairs)) == 2
        assert pairs == batches_of(trainers, step), "from the key and the step"
        picked.update(benign // 2 for benign, _ in pairs)
    # Each is picked with probability 1/3: 200 of 600, deviation 11.5; six deviations have a chance of 2e-9.
    assert sorted(picked) == list(range(6))
    assert all(abs(count - 200) < 70 for count in picked.values())


def test_each_trainer_draws_for_itself() -> None:
    turns = LocalTrainers(6, 6).turns(torch.arange(BATCHES).view(-1, 1), 0, KEY)
    assert len({turn.key.secret for turn in turns}) == 6
    assert len({Ensemble(0.1, 2).size_at(0, turn.key) for turn in turns}) == 6, "mu_t is drawn inside the loop over trainers"


@pytest.mark.parametrize(
    ("trainers", "where"), [(LocalTrainers(7, 1), "trainers.count"), (LocalTrainers(3, 4), "trainers.per_step")]
)
def test_trainers_that_cannot_be_are_refused(trainers: LocalTrainers, where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        trainers.refuse(BATCHES * BATCH, BATCH)
    assert raised.value.where == where
    LocalTrainers(6, 6).refuse(BATCHES * BATCH, BATCH)


@pytest.mark.parametrize(
    ("world", "per_step", "workers"), [(1, 1, 1), (1, 3, 1), (2, 1, 2), (4, 1, 4), (4, 2, 2), (4, 3, 4), (2, 4, 1), (99, 1, 33)]
)
def test_ranks_get_equally_many_parts(world: int, per_step: int, workers: int) -> None:
    found = LocalTrainers(6, per_step).workers(world, BATCH)
    assert found == workers
    if world <= BATCH // 3:
        assert found * per_step % world == 0


def test_parts_are_disjoint_whole_and_attacked_as_in_one_piece() -> None:
    model = with_fixed_draws(with_two_noises(build_network("mlp", SHAPE, 10), SHAPE, 0.02, 0.04), SHAPE).double()
    rows = torch.arange(BATCH)
    inputs = records().inputs(rows)
    attacks, parts = PrintedAttacks(2), [Part(number, 3) for number in range(3)]
    with silenced(model):
        whole = attacks(model, inputs, 0.1, torch.Generator().manual_seed(1))
        pieces = [attacks(model, inputs, 0.1, torch.Generator().manual_seed(1), part) for part in parts]
    places = torch.cat([rows_of(rows, part) for part in parts])
    assert sorted(places.tolist()) == rows.tolist()
    assert torch.allclose(torch.cat(pieces), whole[places], atol=1e-12)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 3, "at most a row of each third"


def test_the_step_is_the_mean_of_its_trainers() -> None:
    """Each trainer's own gradient by itself, from its batches put first and its key; the planted bug is their sum."""
    trainers, step = LocalTrainers(6, 2), 3
    found = gradient_by(trainers, step)
    turns = trainers.turns(fixed_batches(len(records()), BATCH, KEY), step, KEY)
    alone = [_alone(turn.benign, turn.attacked, turn.key, step) for turn in turns]
    mean = {name: (alone[0][name] + alone[1][name]) / 2 for name in found}
    assert farthest(found, mean) < 1e-12
    assert farthest(found, {name: 2 * value for name, value in mean.items()}) > 1e-3


def _alone(benign: Tensor, attacked: Tensor, key: Key, step: int) -> dict[str, Tensor]:
    """Algorithm 1 on two batches; of the run's own draws of noise, which all trainers share."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = with_fixed_draws(with_two_noises(build_network("mlp", SHAPE, 10), SHAPE, 0.02, 0.04), SHAPE).double()
    source = PublishedStoBatch(PrintedTraining(BATCH, 1.0, Ensemble(0.1, 2)), records(), model, KEY)
    FixedDrawsConstraint().apply(model)
    source._batches = torch.stack([attacked, benign] if step % 2 else [benign, attacked])
    source._key = key
    return source.gradient(step)


@needs_fork
@pytest.mark.parametrize(("world", "trainers"), [(2, ONE), (4, ONE), (2, LocalTrainers(6, 3)), (4, LocalTrainers(6, 2))])
def test_ranks_are_the_workers_of_one_step(world: int, trainers: LocalTrainers) -> None:
    wanted = gradient_by(trainers, 2)
    ends = run_ranks(world, lambda ranks: {name: value.tolist() for name, value in gradient_by(trainers, 2, ranks).items()})
    assert all(ended.value == ends[0].value for ended in ends), "the same bits on all ranks"
    found = {name: torch.tensor(value, dtype=torch.float64) for name, value in ends[0].value.items()}
    assert farthest(found, wanted) < 1e-12


class Everything(Share):
    """The bug: every rank does all the work, and what they send is added up."""

    def has(self, number: int) -> bool:
        return True


@needs_fork
def test_work_that_is_done_twice_is_caught() -> None:
    def work(ranks: Ranks) -> float:
        ranks.share = Everything(ranks.rank, ranks.world)
        return farthest(gradient_by(ONE, 2, ranks), gradient_by(ONE, 2))

    assert run_ranks(2, work)[0].value > 1e-3
