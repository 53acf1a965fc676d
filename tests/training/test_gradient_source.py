"""One private step against DP-SGD written out by hand; deliberately wrong steps must differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_problems import (
    CLASSES,
    CPU,
    FEATURES,
    KEY,
    LEVELS,
    PATHS,
    PLAN,
    RECORDS,
    Gradients,
    Problem,
    added,
    clipped,
    distance,
    drawn,
    hand_step,
    network,
    noise_of,
    noisy,
    norm_of,
    one_gradient,
    problem,
    training_split,
)

from twinproof.keys import Key
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import Batching, DeviceRecords, GaussianCopies, Repeats
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import SpacedPath
from twinproof.training.sources import PlainGradients

TOLERANCE = 1e-6


def _raw(given: Problem, step: int) -> list[Gradients]:
    rows = torch.tensor(drawn(step))
    return [
        one_gradient(given.model, x[None], y)
        for x, y in zip(given.records.inputs(rows), given.records.labels[rows], strict=True)
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_step_is_dp_sgd_by_the_book(tmp_path: Path, path: str, rows: int) -> None:
    given = problem(tmp_path, path=PATHS[path], rows=rows)
    for step in (0, 1, 5):
        assert distance(given.source.gradient(step), hand_step(given, step)) < TOLERANCE


def test_the_problem_has_gradients_on_both_sides_of_the_bound(tmp_path: Path) -> None:
    norms = [norm_of(gradient) for gradient in _raw(problem(tmp_path), 0)]
    assert min(norms) < PLAN.clip_norm < max(norms)


def _clips_the_mean(given: Problem) -> Gradients:
    total = added(_raw(given, 0), given.model)
    mean = {name: value / len(drawn(0)) for name, value in total.items()}
    return noisy({name: value * len(drawn(0)) for name, value in clipped(mean, PLAN.clip_norm).items()}, 0, given.model)


def _divides_by_the_draw(given: Problem) -> Gradients:
    scale = PLAN.divisor / len(drawn(0))
    return {name: value * scale for name, value in hand_step(given, 0).items()}


def _halves_the_noise(given: Problem) -> Gradients:
    noise = noise_of(0, given.model, PLAN.noise_multiplier * PLAN.clip_norm / 2 / PLAN.divisor)
    return {name: value - noise[name] for name, value in hand_step(given, 0).items()}


def _clips_by_layer(given: Problem) -> Gradients:
    gradients = [
        {name: clipped({name: value}, PLAN.clip_norm)[name] for name, value in gradient.items()} for gradient in _raw(given, 0)
    ]
    return noisy(added(gradients, given.model), 0, given.model)


def _reuses_noise(given: Problem) -> Gradients:
    gradients = [clipped(gradient, PLAN.clip_norm) for gradient in _raw(given, 0)]
    return noisy(added(gradients, given.model), 1, given.model)


@pytest.mark.parametrize("wrong", [_clips_the_mean, _divides_by_the_draw, _halves_the_noise, _clips_by_layer, _reuses_noise])
def test_a_planted_wrong_step_is_caught(tmp_path: Path, wrong: object) -> None:
    given = problem(tmp_path)
    assert callable(wrong)
    assert distance(given.source.gradient(0), wrong(given)) > 100 * TOLERANCE


def test_an_empty_draw_is_a_step_of_noise_alone(tmp_path: Path) -> None:
    plan = replace(PLAN, sample_rate=1e-15)
    given = problem(tmp_path, plan=plan)
    gradient = given.source.gradient(0)
    noise = noise_of(0, given.model, plan.noise_multiplier * plan.clip_norm / plan.divisor)
    assert given.source.last is not None
    assert given.source.last.drawn == 0
    assert distance(gradient, noise) <= plan.grid / plan.divisor
    assert norm_of(gradient) > 0.1
    assert distance(given.source.gradient(1), gradient) > 1e-3, "the noise of the next step is fresh"


def test_a_path_is_told_of_each_step_with_the_key_through_the_path_around_it(tmp_path: Path) -> None:
    told: list[tuple[int, Key]] = []

    class Listening(FastPath):
        def begin(self, step: int, key: Key) -> None:
            told.append((step, key))

    given = problem(tmp_path, path=lambda model, loss: SpacedPath(Listening(model, loss), 2))
    given.source.gradient(6)
    assert told == [(6, KEY)]


def test_every_step_is_announced_before_it_is_drawn(tmp_path: Path) -> None:
    given = problem(tmp_path)
    given.source.gradient(0)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["body"].get("steps") for line in lines] == [None, PLAN.steps]


def _broken_for_class_two(logits: Tensor, label: Tensor) -> Tensor:
    return mean_cross_entropy(logits, label) * torch.where(label == 2, torch.nan, 1.0)


@pytest.mark.parametrize("path", PATHS)
def test_non_finite_gradients_contribute_nothing_and_are_counted(tmp_path: Path, path: str) -> None:
    given = problem(tmp_path, loss=_broken_for_class_two, path=PATHS[path])
    gradient = given.source.gradient(0)
    whole = [index for index in drawn(0) if index % CLASSES != 2]
    rows = torch.tensor(whole)
    sound = [
        clipped(one_gradient(given.model, x[None], y), PLAN.clip_norm)
        for x, y in zip(given.records.inputs(rows), given.records.labels[rows], strict=True)
    ]
    assert distance(gradient, noisy(added(sound, given.model), 0, given.model)) < TOLERANCE
    assert given.source.last is not None
    assert given.source.last.non_finite == len(drawn(0)) - len(whole) > 0


def test_the_diagnostics_count_what_was_drawn_and_clipped(tmp_path: Path) -> None:
    given = problem(tmp_path)
    given.source.gradient(3)
    norms = [norm_of(gradient) for gradient in _raw(given, 3)]
    seen = given.source.last
    assert seen is not None
    assert (seen.step, seen.drawn, seen.non_finite) == (3, len(drawn(3)), 0)
    assert seen.clipped == sum(norm > PLAN.clip_norm for norm in norms)


def _copies_of(given: Problem, step: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Every drawn record's copies, from the noise that belongs to the step and pass, with its label."""
    found = []
    indices = drawn(step)
    for number, start in enumerate(range(0, len(indices), rows)):
        chunk = torch.tensor(indices[start : start + rows])
        padded = torch.zeros(rows, FEATURES, dtype=torch.float64)
        padded[: len(chunk)] = given.records.inputs(chunk)
        copies = given.batching.copies(padded, step, number)
        found += list(zip(copies, given.records.labels[chunk], strict=False))
    return found


@pytest.mark.parametrize("path", PATHS)
def test_copies_are_averaged_before_clipping(tmp_path: Path, path: str) -> None:
    given = problem(tmp_path, augmentation=GaussianCopies(2, 0.25), path=PATHS[path], rows=9)
    pairs = _copies_of(given, 0, 9)
    averaged = [clipped(one_gradient(given.model, copies, label), PLAN.clip_norm) for copies, label in pairs]
    gradient = given.source.gradient(0)
    assert distance(gradient, noisy(added(averaged, given.model), 0, given.model)) < TOLERANCE
    apart = [
        clipped(one_gradient(given.model, copy[None], label), PLAN.clip_norm) for copies, label in pairs for copy in copies
    ]
    planted = {name: value / 3 for name, value in added(apart, given.model).items()}
    assert distance(gradient, noisy(planted, 0, given.model)) > 100 * TOLERANCE, "clipping each copy must be told apart"


def test_no_noisy_copies_is_dp_sgd(tmp_path: Path) -> None:
    plain = problem(tmp_path / "plain")
    none = problem(tmp_path / "none", augmentation=GaussianCopies(0, 0.25))
    assert distance(plain.source.gradient(0), none.source.gradient(0)) == 0


@pytest.mark.parametrize("path", PATHS)
def test_layers_that_draw_take_their_numbers_from_the_key(tmp_path: Path, path: str) -> None:
    """Whatever the global generator has been used for, so that a resumed run draws the same, and the caller's stays put."""
    gradients = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        given = problem(tmp_path / str(seed), model=nn.Sequential(nn.Dropout(0.5), *network()), path=PATHS[path])  # type: ignore[misc]
        gradients.append(given.source.gradient(1))
        assert torch.equal(torch.get_rng_state(), before)
    assert distance(gradients[0], gradients[1]) == 0
    still = problem(tmp_path / "still", model=nn.Sequential(nn.Dropout(0.0), *network()), path=PATHS[path])  # type: ignore[misc]
    assert distance(gradients[0], still.source.gradient(1)) > 1e-3, "the layer did draw"


class RemembersMasks(nn.Dropout):
    """Dropout that keeps what it let through."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        self.seen.append(outputs.detach() != 0)
        return outputs


def test_layers_draw_anew_in_every_step_and_pass(tmp_path: Path) -> None:
    model = network()
    layer = RemembersMasks()
    records = DeviceRecords(training_split(), LEVELS, CPU, torch.float64)
    batching = Batching(records, Repeats(), 20, KEY)
    source = PlainGradients(nn.Sequential(layer, model), mean_cross_entropy, batching, sample_rate=1.0, divisor=12.0)
    for step in (0, 1, 0):
        source.gradient(step)
    first, second = layer.seen[:2], layer.seen[2:4]
    assert [mask.tolist() for mask in layer.seen[4:]] == [mask.tolist() for mask in first], "a repeated step draws the same"
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])


def test_the_plain_gradient_is_the_sum_over_the_expected_batch(tmp_path: Path) -> None:
    model = network()
    records = DeviceRecords(training_split(), LEVELS, CPU, torch.float64)
    source = PlainGradients(
        model, mean_cross_entropy, Batching(records, Repeats(), 7, KEY), sample_rate=PLAN.sample_rate, divisor=12.0
    )
    rows = torch.tensor(drawn(0))
    loss = nn.functional.cross_entropy(model(records.inputs(rows)), records.labels[rows], reduction="sum") / 12.0
    names, values = zip(*model.named_parameters(), strict=True)
    truth = dict(zip(names, torch.autograd.grad(loss, values), strict=True))
    assert distance(source.gradient(0), truth) < 1e-12
    assert len(records) == RECORDS
