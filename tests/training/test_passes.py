"""Passes: their size, their copies of records, and how they may be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import poisson
from torch import Tensor, nn
from training_problems import CPU, KEY, LEVELS, training_split

from twinproof.data.record import Split
from twinproof.errors import ConfigError
from twinproof.layers.cross_example import is_known
from twinproof.layers.networks import NETWORKS, build_network
from twinproof.layers.noise import Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.training.passes import (
    ONE_BY_ONE,
    Augmentation,
    Batching,
    DeviceRecords,
    GaussianCopies,
    Pass,
    PassMode,
    Performance,
    Repeats,
    expected_passes,
    largest_pass,
    layers_draw,
    pass_mode,
    physical_batch_size,
)

CASES = [(0, 4), (1, 4), (3, 4), (4, 4), (5, 4), (40, 7), (40, 64), (40, 1)]


def problems(records: DeviceRecords, indices: list[int], size: int, passes: Iterable[Pass]) -> list[str]:
    """What is wrong with these passes over ``indices``."""
    found, rows, labels = [], [torch.zeros(0, 5)], [torch.zeros(0, dtype=torch.int64)]
    for batch in passes:
        if not len(batch.inputs) == len(batch.labels) == len(batch.present) == size:
            found.append("a pass is not of the fixed size")
        if bool(batch.inputs[~batch.present].any()) or bool(batch.labels[~batch.present].any()):
            found.append("a filling row carries a record")
        rows.append(batch.inputs[batch.present])
        labels.append(batch.labels[batch.present])
    wanted = torch.tensor(indices, dtype=torch.int64)
    if not torch.equal(torch.cat(rows), records.inputs(wanted)) or not torch.equal(torch.cat(labels), records.labels[wanted]):
        found.append("the present rows are not the drawn records")
    return found


def _records() -> DeviceRecords:
    split = training_split()
    return DeviceRecords(Split(np.maximum(split.inputs, 1), split.labels), LEVELS, CPU)  # no record is all zeros


def _indices(count: int) -> list[int]:
    return sorted(np.random.default_rng(count).permutation(40)[:count].tolist())


@pytest.mark.parametrize(("count", "size"), CASES)
def test_every_drawn_record_is_in_one_full_size_pass(count: int, size: int) -> None:
    records, indices = _records(), _indices(count)
    passes = list(records.passes(torch.tensor(indices, dtype=torch.int64), size))
    assert len(passes) == -(-count // size)
    assert problems(records, indices, size, passes) == []


def test_planted_passes_are_caught() -> None:
    records, indices = _records(), _indices(5)
    whole = list(records.passes(torch.tensor(indices), 4))
    first = records.inputs(slice(0, 4))
    carries = [
        whole[0],
        Pass(torch.where(whole[1].present[:, None], whole[1].inputs, first), whole[1].labels, whole[1].present),
    ]
    short = [whole[0], Pass(whole[1].inputs[:1], whole[1].labels[:1], whole[1].present[:1])]
    unmasked = [whole[0], Pass(whole[1].inputs, whole[1].labels, torch.ones(4, dtype=torch.bool))]
    for planted, message in (
        (carries, "a filling row carries a record"),
        (short, "a pass is not of the fixed size"),
        (unmasked, "the present rows are not the drawn records"),
        (whole[:1], "the present rows are not the drawn records"),
    ):
        assert problems(records, indices, 4, planted) == [message]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_inputs_are_levels_over_levels(dtype: type[np.generic]) -> None:
    levels = int(np.iinfo(dtype).max)  # type: ignore[type-var]
    split = Split(np.array([[0, levels], [levels, 1]], dtype=dtype), np.array([0, 1]))
    records = DeviceRecords(split, levels, CPU, torch.float64)
    assert records.inputs(slice(None)).tolist() == [[0.0, 1.0], [1.0, 1 / levels]]


SIGMA = 0.25
# The standard deviation of a sample deviation over a million draws is 0.07 %: 0.5 % is seven of them.
TOLERANCE, DRAWS = 0.005, 1_000_000


def _noise(augmentation: Augmentation, seed: int = 1) -> Tensor:
    inputs = torch.full((DRAWS // 400, 100), 0.5, dtype=torch.float64)
    copies = augmentation(inputs, torch.Generator().manual_seed(seed))
    assert torch.equal(copies[:, 0], inputs), "the first copy is the record itself"
    return copies[:, 1:] - 0.5


def _deviation_is_right(augmentation: Augmentation) -> bool:
    return abs(float(_noise(augmentation).std()) / SIGMA - 1) < TOLERANCE


def test_the_deviation_is_sigma() -> None:
    noise = _noise(GaussianCopies(4, SIGMA))
    assert noise.numel() == DRAWS
    assert _deviation_is_right(GaussianCopies(4, SIGMA))
    assert abs(float(noise.mean())) < 6 * SIGMA / DRAWS**0.5
    assert float(noise.abs().max()) > 4 * SIGMA, "not clipped back"


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_planted_error_of_one_per_cent_is_caught(factor: float) -> None:
    assert not _deviation_is_right(GaussianCopies(4, SIGMA * factor))


def test_noise_is_fresh_for_every_record_copy_and_coordinate() -> None:
    noise = _noise(GaussianCopies(4, SIGMA))
    rows = noise.flatten(0, 1)
    assert len(torch.unique(rows[:, 0])) == len(rows)
    for one, other in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:]), (noise[..., :-1], noise[..., 1:])):
        correlation = float((one * other).mean()) / SIGMA**2
        assert abs(correlation) < 6 / one.numel() ** 0.5


@pytest.mark.parametrize("copies", [0, 1, 5])
def test_the_number_of_copies_counts_the_original(copies: int) -> None:
    augmentation = GaussianCopies(copies, SIGMA)
    made = augmentation(torch.zeros(3, 2, 4, 4), torch.Generator().manual_seed(1))
    assert made.shape == (3, augmentation.copies, 2, 4, 4) == (3, copies + 1, 2, 4, 4)


def test_noisy_copies_can_stand_in_the_records_place() -> None:
    inputs = torch.rand(4, 3, generator=torch.Generator().manual_seed(2))
    with_it, without = (
        GaussianCopies(2, SIGMA, original)(inputs, torch.Generator().manual_seed(1)) for original in (True, False)
    )
    assert GaussianCopies(2, SIGMA, original=False).copies == 2
    assert torch.equal(without, with_it[:, 1:])
    with pytest.raises(ConfigError, match="never be seen"):
        GaussianCopies(0, SIGMA, original=False)


def test_noise_belongs_to_its_step_and_pass() -> None:
    records = DeviceRecords(training_split(), LEVELS, CPU)
    batching = Batching(records, GaussianCopies(2, SIGMA), 8, KEY)
    inputs = records.inputs(slice(0, 8))
    made = {(step, number): batching.copies(inputs, step, number) for step in range(3) for number in range(3)}
    assert torch.equal(made[1, 2], batching.copies(inputs, 1, 2)), "a resumed step draws the same"
    noises = [tuple(copies[:, 1:].flatten().tolist()) for copies in made.values()]
    assert len(set(noises)) == len(noises)


def test_one_records_copies_do_not_depend_on_the_other_records() -> None:
    augmentation = GaussianCopies(2, SIGMA)
    inputs = torch.rand(5, 4, generator=torch.Generator().manual_seed(3))
    other = inputs.clone()
    other[1:] = 0
    one, two = (augmentation(given, torch.Generator().manual_seed(7)) for given in (inputs, other))
    assert torch.equal(one[0], two[0])


@pytest.mark.parametrize("copies", [1, 3])
def test_repeats_are_the_record_itself_in_memory_of_their_own(copies: int) -> None:
    inputs, generator = torch.rand(3, 2, 4), torch.Generator().manual_seed(1)
    before = generator.get_state()
    augmentation = Repeats(copies)
    made = augmentation(inputs, generator)
    assert augmentation.copies == copies
    assert torch.equal(made, torch.stack([inputs] * copies, dim=1))
    assert torch.equal(generator.get_state(), before), "nothing is drawn"
    made[0, 0] += 1
    if copies > 1:
        assert torch.equal(made[0, 1], inputs[0])


def test_repeats_need_a_copy() -> None:
    with pytest.raises(ConfigError, match="at least one copy"):
        Repeats(0)


CUDA = torch.device("cuda")


class Own(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def _hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_our_networks_run_at_full_speed(name: str) -> None:
    model = build_network(name, (3, 32, 32), 10)
    assert pass_mode(model, CUDA) == PassMode(capture=True)
    assert pass_mode(model, CPU) == PassMode(workers=torch.get_num_threads())
    assert not layers_draw(model)


@pytest.mark.parametrize("model", [Own(), nn.Sequential(nn.Linear(2, 2), Own()), _hooked()])
def test_unknown_code_is_run_as_it_is(model: nn.Module) -> None:
    assert pass_mode(model, CPU) == pass_mode(model, CUDA) == ONE_BY_ONE
    assert layers_draw(model)


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.Dropout2d(), nn.RReLU(), nn.MultiheadAttention(4, 2, dropout=0.1)])
def test_layers_that_draw_do_not_share_the_generator_between_threads(layer: nn.Module) -> None:
    assert pass_mode(nn.Sequential(nn.Linear(4, 4), layer), CPU) == ONE_BY_ONE
    assert layers_draw(nn.Sequential(nn.Linear(4, 4), layer))


@pytest.mark.parametrize("spread", [UniformSpread((4,)), LearnedSpread((4,)), RandomSpread((4,), 0.5)])
def test_noise_layers_draw_and_can_be_recorded(spread: Spread) -> None:
    model = add_noise(
        nn.Sequential(nn.Linear(4, 4)), (4,), Place.FIRST_LAYER, lambda s: NoiseLayer(s, Law.GAUSSIAN, 0.1, spread)
    )
    assert layers_draw(model)
    assert pass_mode(model, CPU) == ONE_BY_ONE
    assert pass_mode(model, CUDA) == PassMode(capture=True)


def replaced() -> nn.Module:
    """A layer of torch with a forward pass of somebody else's."""
    model = nn.Sequential(nn.Linear(4, 4))
    honest = model[0].forward
    model[0].forward = lambda rows: honest(rows - rows.mean(0))
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_full_backward_hook(lambda *_: None)
    return model


def with_foreign_function() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 1, 8, activation=lambda values: values - values.mean(0))


@pytest.mark.parametrize("make", [replaced, hooked, with_foreign_function])
def test_code_of_somebody_else_inside_a_layer_of_torch_is_not_known(make: Callable[[], nn.Module]) -> None:
    assert not is_known(make())
    assert is_known(nn.TransformerEncoderLayer(4, 1, 8, activation=nn.functional.gelu))


@given(expected=st.floats(1e-3, 1e5), copies=st.integers(1, 65), limit=st.integers(1, 4096))
def test_rows_are_at_least_one_and_within_the_memory_limit(expected: float, copies: int, limit: int) -> None:
    rows = physical_batch_size(Performance(), expected, copies=copies, limit=limit)
    assert rows >= 1
    assert rows * copies <= max(limit, copies)


@given(expected=st.floats(1e-3, 1e5), copies=st.integers(1, 65), limit=st.integers(1, 4096), workers=st.integers(1, 2))
@settings(deadline=None, max_examples=40)
def test_rows_on_a_cpu_stay_within_every_limit(expected: float, copies: int, limit: int, workers: int) -> None:
    rows = physical_batch_size(
        Performance(), expected, copies=copies, limit=limit, device="cpu", parameters=26_010, workers=workers
    )
    assert rows >= 1
    assert rows * copies <= max(limit, copies)
    assert rows <= max(8, 512 // copies)


@pytest.mark.parametrize(("parameters", "most"), [(26_010, 512), (1_205_642, 27), (2_748_890, 12), (11_173_962, 8)])
def test_gradients_of_a_pass_on_a_cpu_take_bounded_memory(parameters: int, most: int) -> None:
    sizes = {physical_batch_size(Performance(), 10.0**n, copies=1, device="cpu", parameters=parameters) for n in range(6)}
    assert max(sizes) <= most == largest_pass(copies=1, device="cpu", parameters=parameters)


@pytest.mark.parametrize("expected", [3.0, 64.0, 300.0, 2048.0])
@pytest.mark.parametrize("size", [8, 64, 144])
def test_expected_passes_are_those_of_a_poisson_draw(expected: float, size: int) -> None:
    counts = np.arange(0, int(expected + 12 * expected**0.5 + 20))
    wanted = float((poisson.pmf(counts, expected) * np.ceil(counts / size)).sum())
    assert expected_passes(expected, size) == pytest.approx(wanted, abs=0.06, rel=0.005)
    planted = expected / size  # wrong on purpose: the rows that only fill the last pass are forgotten
    assert planted < wanted - 0.1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("expected", [16.0, 64.0, 256.0, 300.0, 2048.0])
def test_size_on_a_cpu_costs_least(expected: float, workers: int) -> None:
    """Against every size, and against the largest one, which wastes the most rows."""

    def cost(size: int) -> float:
        return expected_passes(expected, size * workers) * (size + 24)

    chosen = physical_batch_size(Performance(), expected, copies=1, device="cpu", workers=workers)
    assert cost(chosen) <= min(cost(size) for size in range(8, min(512, int(expected + 4 * expected**0.5 + 2)) + 1, 8))
    if expected == 300.0:
        assert cost(chosen) < 0.9 * cost(512)


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_what_is_asked_for_is_taken(rows: int) -> None:
    assert physical_batch_size(Performance(physical_batch=rows), 10, copies=3) == rows


@pytest.mark.parametrize(
    "settings", [{"device": "tpu"}, {"physical_batch": 0}, {"path": "ghost"}, {"checkpoint_every": 0}, {"epsilon": 1.0}]
)
def test_unusable_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Performance.model_validate(settings)
