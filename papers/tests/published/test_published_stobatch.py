"""StoBatch as printed (Algorithms 1 and 4): its noise, batches, attacks, local trainers, and why its privacy is refuted."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rank_processes import run_ranks
from twinproof.compute.ranks import ALONE, Ranks, Share
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.fixed_draws import PSI, FixedDrawsConstraint, fixed_draws_of, with_fixed_draws
from twinproof.layers.networks import build_network
from twinproof.layers.noise import silenced
from twinproof.layers.noise_placement import with_two_noises
from twinproof.training.passes import DeviceRecords
from twinproof.training.stobatch import Ensemble, taylor_cross_entropy
from twinproof_papers.published.stobatch import ONE_TRAINER as ONE
from twinproof_papers.published.stobatch import (
    LocalTrainers,
    Part,
    PrintedAttacks,
    PrintedTraining,
    PublishedStoBatch,
    ends_of,
    fixed_batches,
    paper_noise,
    paper_output_noise,
    rows_of,
)

SHAPE, KEY, BATCH, BATCHES = (1, 8, 8), Key.from_seed(8), 100, 13
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
TRAINING = PrintedTraining(BATCH, 1.0, Ensemble(0.1, 2))


@pytest.fixture(autouse=True)
def _fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


def _network(name: str = "mlp") -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return with_fixed_draws(with_two_noises(build_network(name, SHAPE, 10), SHAPE, 0.02, 0.04), SHAPE)


def _records(dtype: torch.dtype = torch.float32) -> DeviceRecords:
    dataset = load(DataConfig(source="digits"))
    return DeviceRecords(dataset.train, dataset.levels, torch.device("cpu"), dtype=dtype)


def _source(model: nn.Module, key: Key = KEY) -> PublishedStoBatch:
    source = PublishedStoBatch(TRAINING, _records(), model, key)
    FixedDrawsConstraint().apply(model)
    return source


def test_scales_are_those_of_the_paper_on_mnist() -> None:
    """Delta_R = 4950; at epsilon 1 the authors' scales are about 4.1 and 8.3 on pixels in [-1, 1]: half of it here."""
    layer = nn.Conv2d(1, 32, 5, stride=2, padding=2)
    found = paper_noise(1.0, 2499, layer, (32, 14, 14))
    norm = float(layer.weight.detach().abs().flatten(1).sum(1).max())
    share = 1 + 2499 * norm / (2 * 4950) + 2499 / 4950
    assert found.on_input == pytest.approx(4950 / 2499 / (0.9 / share) / 2, rel=1e-6)
    assert found.on_layer == pytest.approx(2 * found.on_input)
    assert 1 < found.on_input < 4
    assert paper_output_noise(2499, 256) == pytest.approx(512 / 249.9)


@pytest.mark.parametrize("epsilon", [None, 0.1, math.inf])
def test_claims_that_leave_nothing_for_the_first_layer_are_refused(epsilon: float | None) -> None:
    with pytest.raises(ConfigError, match="cannot claim this epsilon"):
        paper_noise(epsilon, 100, nn.Linear(4, 3), (3,))


def test_batches_are_disjoint_fixed_and_complete() -> None:
    batches = fixed_batches(1397, BATCH, KEY)
    assert batches.shape == (1397 // BATCH, BATCH)
    assert len(set(batches.flatten().tolist())) == batches.numel()
    assert torch.equal(batches, fixed_batches(1397, BATCH, KEY))
    assert not torch.equal(batches, fixed_batches(1397, BATCH, Key.from_seed(9)))
    with pytest.raises(ConfigError, match="there are no two batches"):
        fixed_batches(2 * BATCH - 1, BATCH, KEY)


def test_one_draw_is_kept_for_all_records_and_steps_with_the_stated_scale() -> None:
    """And so the differences of perturbed records are those of the records: nothing is hidden."""
    model = _network()
    source = _source(model)
    two, draws = fixed_draws_of(model)
    kept = draws.on_input.clone()
    expected = PSI * float(two.input_noise.deviation)
    assert float(kept.abs().mean()) == pytest.approx(expected, rel=0.4)
    source.gradient(0)
    source.gradient(1)
    assert torch.equal(draws.on_input, kept)
    one, other = _records().inputs(torch.tensor([3, 4])) + draws.on_input
    exact = _records().inputs(torch.tensor([3, 4]))
    assert torch.allclose(one - other, exact[0] - exact[1], atol=1e-6)
    again = _network()
    _source(again)
    assert torch.equal(fixed_draws_of(again)[1].on_input, kept), "a resumed training draws the same"


def test_the_first_layer_descends_the_reconstruction_as_the_paper_writes_it() -> None:
    """Mean over both batches of h (1/2 - x)', with x in [-1, 1] and h as the network with its fixed draw sees it."""
    model = _network()
    source = _source(model)
    records, batches = _records(), fixed_batches(len(_records()), BATCH, KEY)
    layer, _ = ends_of(model)
    _, draws = fixed_draws_of(model)
    found = source.gradient(0)
    name = next(name for name, value in model.named_parameters() if value is layer.weight)
    generator = torch.Generator()
    attacked = _attacked_again(model, records.inputs(batches[1]), generator)
    rows = torch.cat([records.inputs(batches[0]), attacked])
    moved = (rows + draws.on_input).flatten(1)
    code = moved @ layer.weight.detach().T + layer.bias.detach() + draws.on_layer.flatten()  # type: ignore[union-attr]
    wanted = code.T @ (0.5 - (2 * moved - 1)) / len(rows)
    assert torch.allclose(found[name], wanted, rtol=1e-3, atol=1e-4)


def _attacked_again(model: nn.Module, inputs: Tensor, generator: torch.Generator) -> Tensor:
    from twinproof.compute.devices import seed_generator

    seed_generator(generator, KEY, "printed: attacks", 0)
    with silenced(model):
        return PrintedAttacks(TRAINING.ensemble.steps)(model, inputs, TRAINING.ensemble.size_at(0, KEY), generator)


def test_the_rest_descends_the_classification_with_noise_in_the_labels_coefficients() -> None:
    model = _network()
    source = _source(model)
    records, batches = _records(), fixed_batches(len(_records()), BATCH, KEY)
    found = source.gradient(0)
    attacked = _attacked_again(model, records.inputs(batches[1]), torch.Generator())
    _, last = ends_of(model)
    with silenced(model):
        parts = ((records.inputs(batches[0]), batches[0]), (attacked, batches[1]))
        losses = [
            torch.stack(
                [taylor_cross_entropy(row[None], label) for row, label in zip(model(rows), records.labels[of], strict=True)]
            ).mean()
            for rows, of in parts
        ]
        plain = torch.autograd.grad((losses[0] + losses[1]) / 2, last.weight)[0]
    noise = plain - found[next(name for name, value in model.named_parameters() if value is last.weight)]
    assert torch.allclose(noise, noise[:1].expand_as(noise), atol=1e-4), "one draw for all classes: W_a - W_b gets none"
    scale = paper_output_noise(BATCH, last.in_features)
    assert float(noise[0].abs().mean()) == pytest.approx(scale, rel=0.6)


def test_the_next_batch_is_attacked_in_thirds_inside_the_size() -> None:
    model, inputs = _network("stobatch-cnn"), _records().inputs(torch.arange(90))
    _source(model)
    with silenced(model):
        attacked = PrintedAttacks(4)(model, inputs, 0.1, torch.Generator().manual_seed(1))
        signs = PrintedAttacks(1)(model, inputs, 0.1, torch.Generator().manual_seed(1))
    moved = (attacked - inputs).abs()
    assert float(moved.max()) <= 0.1 + 1e-6
    whole = (signs - inputs).abs().flatten(1)
    alike = [bool(((part - 0.1).abs() < 1e-5).float().mean() > 0.95) for part in torch.tensor_split(whole, 3)]
    assert alike == [True, True, False], "the last third starts anywhere in the ball"


def _by_hand(model: nn.Module, record: Tensor, start: Tensor, size: float, decay: float) -> Tensor:
    """Four steps of one attack on one record (*shape), from Eq. 8 and MIM's rule."""
    point, gathered = start, torch.zeros_like(record)
    for _ in range(4):
        leaf = point.clone().requires_grad_()
        logits = model(leaf.unsqueeze(0))
        (slope,) = torch.autograd.grad(cross_entropy(logits, logits.argmax(dim=1)), leaf)
        gathered = decay * gathered + slope / slope.abs().sum()
        point = (point + size / 4 * gathered.sign()).clamp(record - size, record + size)
    return point.detach()


def test_each_third_is_its_attack_on_one_record_at_a_time() -> None:
    """Planted: the decay of MIM on the wrong third."""
    model, inputs, size = _network("stobatch-cnn").double(), _records().inputs(torch.arange(9)).double(), 0.1
    _source(model)
    thirds = torch.tensor_split(inputs, 3)
    drawn = torch.rand(thirds[2].shape, generator=torch.Generator().manual_seed(1), dtype=inputs.dtype)
    starts = torch.cat([*thirds[:2], thirds[2] + size * (2 * drawn - 1)])
    with silenced(model):
        attacked = PrintedAttacks(4)(model, inputs, size, torch.Generator().manual_seed(1))
        right, planted = (
            torch.stack(
                [_by_hand(model, *pair, size, decays[at // 3]) for at, pair in enumerate(zip(inputs, starts, strict=True))]
            )
            for decays in ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0))
        )
    assert float((attacked - right).abs().max()) < 1e-9
    assert float((attacked - planted).abs().max()) > 0.01


def test_a_network_that_cannot_be_trained_so_is_refused() -> None:
    open_ended = with_two_noises(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), (4,), 0.1, 0.1)
    with pytest.raises(ModelError, match="needs a linear layer at the end"):
        ends_of(with_fixed_draws(open_ended, (4,)))
    with pytest.raises(ModelError, match="no draws to fix"):
        ends_of(open_ended)


def third_singular_value(seen: Tensor, weights: Tensor, data: Tensor) -> float:
    """Of the first layer's update, with the part of these records taken out; two unknown draws leave it a rank of 2."""
    return float(torch.linalg.svdvals(seen + 2 * weights @ data.T @ data / len(data))[2])


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_told_apart_with_certainty_from_one_update(seed: int) -> None:
    """The steps themselves, in float64, with attacks of no size; the adversary knows the initial weights and no draw.

    With W the weights, k = W c1 + b + c2 and v = 3/2 - 2 c1 the update is -2 W M + (W m + k) v' - 2 k m', M and m being the
    second and first moments of the records: -2 W M is known to whoever guesses the records, and the rest has rank 2.
    """
    records, model = _records(torch.float64), _network().double()
    training = PrintedTraining(BATCH, 1.0, Ensemble(1e-30, 1))
    source = PublishedStoBatch(training, records, model, Key.from_seed(seed))
    FixedDrawsConstraint().apply(model)
    layer, _ = ends_of(model)
    name = next(name for name, value in model.named_parameters() if value is layer.weight)
    batches = fixed_batches(len(records), BATCH, Key.from_seed(seed))
    data = records.inputs(batches[:2].flatten()).flatten(1)
    neighbour = data.clone()
    neighbour[7] = records.inputs(batches[2, :1]).flatten()
    seen, weights = source.gradient(0)[name], layer.weight.detach()
    assert third_singular_value(seen, weights, data) < 1e-12
    assert third_singular_value(seen, weights, neighbour) > 1e-5


def gradient_by(trainers: LocalTrainers, step: int, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """The gradient of one step, in float64, so that a difference is one of arithmetic and not of rounding."""
    model = _network().double()
    training = PrintedTraining(BATCH, 1.0, Ensemble(0.1, 2), trainers)
    source = PublishedStoBatch(training, _records(torch.float64), model, KEY, ranks)
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
    model, rows = _network().double(), torch.arange(BATCH)
    inputs = _records(torch.float64).inputs(rows)
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
    turns = trainers.turns(fixed_batches(len(_records()), BATCH, KEY), step, KEY)
    alone = [_alone(turn.benign, turn.attacked, turn.key, step) for turn in turns]
    mean = {name: (alone[0][name] + alone[1][name]) / 2 for name in found}
    assert farthest(found, mean) < 1e-12
    assert farthest(found, {name: 2 * value for name, value in mean.items()}) > 1e-3


def _alone(benign: Tensor, attacked: Tensor, key: Key, step: int) -> dict[str, Tensor]:
    """Algorithm 1 on two batches; of the run's own draws of noise, which all trainers share."""
    model = _network().double()
    source = PublishedStoBatch(TRAINING, _records(torch.float64), model, KEY)
    FixedDrawsConstraint().apply(model)
    source._batches = torch.stack([attacked, benign] if step % 2 else [benign, attacked])
    source._key = key
    return source.gradient(step)


@needs_fork
@pytest.mark.parametrize(("world", "trainers"), [(2, ONE), (4, LocalTrainers(6, 2))])
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
