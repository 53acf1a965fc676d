"""Noisy copies: the right deviation, fresh for every step, pass and record, and the original untouched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from training_problems import CPU, KEY, LEVELS, training_split

from twinproof.errors import ConfigError
from twinproof.training.passes import Augmentation, Batching, DeviceRecords, GaussianCopies, OriginalOnly, Repeats

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


def test_the_original_alone_draws_nothing() -> None:
    inputs, generator = torch.rand(3, 4), torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert torch.equal(OriginalOnly()(inputs, generator), inputs[:, None])
    assert torch.equal(generator.get_state(), before)


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
