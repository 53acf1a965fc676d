"""Copies moved against the network: uphill, inside ball and range, each record by itself, and by declared numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_problems import FEATURES, Problem, network, problem

from twinproof.data.load import load
from twinproof.data.record import DataConfig, Split
from twinproof.errors import ConfigError
from twinproof.layers.networks import build_network
from twinproof.training.copies import AdversarialCopies, Ascent, smoothed_loss
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import ONE_BY_ONE, GaussianCopies, PassMode
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss, VmapPath
from twinproof.training.sources import PrivateGradients

SIGMA, NOISY, FRESH = 0.25, 2, 128
AUTHORS = Ascent(radius=0.25, steps=2)


class Descends(AdversarialCopies):
    """Planted: the authors' sign, which moves copies where the loss is lower."""

    def _slope(self, movement: Tensor, noisy: Tensor, label: Tensor) -> Tensor:
        return -super()._slope(movement, noisy, label)


class TooFar(AdversarialCopies):
    """Planted: the full distance in each of two steps, without coming back into the ball."""

    def _movement(self, copies: Tensor, label: Tensor) -> Tensor:
        return 2 * super()._movement(copies, label)


def _digits() -> tuple[Split, int]:
    dataset = load(DataConfig(source="digits"))
    return dataset.train, dataset.levels


@pytest.fixture(scope="module", params=["mlp", "small-cnn"])
def trained(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Tensor]:
    """A network that knows its digits under noise, and 400 of them."""
    split, levels = _digits()
    inputs = torch.from_numpy(split.inputs.astype(np.float32)) / levels
    labels = torch.from_numpy(split.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = build_network(request.param, tuple(inputs.shape[1:]), 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        for _ in range(120):
            rows = torch.randint(0, len(inputs), (64,))
            noisy = inputs[rows] + SIGMA * torch.randn_like(inputs[rows])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(noisy), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model, inputs[:400], labels[:400]


def _moving(model: nn.Module, kind: type[AdversarialCopies] = AdversarialCopies, ascent: Ascent = AUTHORS) -> AdversarialCopies:
    return kind(model, FastPath(model, mean_cross_entropy), ascent)


def _copies(inputs: Tensor, seed: int = 3) -> Tensor:
    return GaussianCopies(NOISY, SIGMA)(inputs, torch.Generator().manual_seed(seed))


def _true_losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of the smoothed classifier, over many draws that no ascent has seen; the same ones for every call."""
    generator = torch.Generator().manual_seed(77)
    noise = SIGMA * torch.randn(FRESH, *inputs.shape[1:], generator=generator)
    with torch.no_grad():
        return torch.stack(
            [smoothed_loss(model(one + noise), label) for one, label in zip(inputs, labels, strict=True)]
        ).double()


def share_raised(moving: AdversarialCopies, inputs: Tensor, labels: Tensor) -> float:
    """How often the smoothed loss is higher at the moved record than at the record."""
    copies = _copies(inputs)
    movement = (moving.moved(copies, labels) - copies)[:, 1]
    gain = _true_losses(moving.model, inputs + movement, labels) - _true_losses(moving.model, inputs, labels)
    return float((gain > 0).double().mean())


def test_the_ascent_raises_the_smoothed_loss(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    assert share_raised(_moving(trained[0]), *trained[1:]) >= 0.99


def test_planted_descent_of_the_authors_is_caught(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    assert share_raised(_moving(trained[0], Descends), *trained[1:]) < 0.05


def stays_inside(moving: AdversarialCopies, inputs: Tensor, labels: Tensor) -> bool:
    copies = _copies(inputs)
    movement = (moving.moved(copies, labels) - copies)[:, 1].double()
    lengths = movement.flatten(1).norm(dim=1)
    reached = inputs.double() + movement
    in_range = bool((reached >= -1e-6).all()) and bool((reached <= 1 + 1e-6).all())
    return in_range and float(lengths.max()) <= moving.ascent.radius * (1 + 1e-5)


def test_movements_stay_in_the_ball_and_the_range(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    for ascent in (AUTHORS, Ascent(0.1, 1), Ascent(3.0, 5)):
        assert stays_inside(_moving(trained[0], ascent=ascent), *trained[1:])
    assert not stays_inside(_moving(trained[0], TooFar), *trained[1:])


def test_all_noisy_copies_move_alike_and_the_original_stays(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained
    copies = _copies(inputs)
    moved = _moving(model).moved(copies, labels)
    assert torch.equal(moved[:, 0], inputs)
    assert torch.allclose(moved[:, 1] - copies[:, 1], moved[:, 2] - copies[:, 2], atol=1e-6)
    without = AdversarialCopies(model, FastPath(model, mean_cross_entropy), AUTHORS, originals=False)
    assert torch.equal(without.moved(copies, labels), moved[:, 1:])


def _slow_movement(model: nn.Module, copies: Tensor, label: Tensor, ascent: Ascent) -> Tensor:
    """The ascent of one record by plain autograd and loops."""
    record, delta = copies[0], torch.zeros_like(copies[0])
    for _ in range(ascent.steps):
        delta = delta.detach().requires_grad_()
        chances = [model((copy + delta)[None]).softmax(1)[0, label] for copy in copies[1:]]
        loss = -torch.log(torch.stack(chances).mean())
        slope = torch.autograd.grad(loss, delta)[0]
        delta = delta.detach() + 2 * ascent.radius / ascent.steps * slope / slope.norm()
        delta = torch.clamp(record + delta, 0, 1) - record
        if delta.norm() > ascent.radius:
            delta = delta * ascent.radius / delta.norm()
    return delta


@pytest.mark.parametrize("ascent", [AUTHORS, Ascent(0.6, 4)])
def test_the_ascent_is_the_one_written_by_hand(ascent: Ascent) -> None:
    model, generator = network(), torch.Generator().manual_seed(5)
    inputs = torch.rand(9, FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.arange(9) % 3
    copies = GaussianCopies(3, SIGMA)(inputs, generator)
    moved = _moving(model, ascent=ascent).moved(copies, labels)
    for row in range(9):
        wanted = copies[row, 1:] + _slow_movement(model, copies[row], labels[row], ascent)
        assert torch.allclose(moved[row, 1:], wanted, atol=1e-6)


def test_nobody_moves_without_a_slope_or_a_record() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, inputs: Tensor) -> Tensor:
            return (0 * inputs.sum(dim=1, keepdim=True)).expand(-1, 3) * self.weight

    moving = AdversarialCopies(Flat(), VmapPath(Flat(), mean_cross_entropy), AUTHORS)
    copies = _copies(torch.rand(4, 5, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(moving.moved(copies, torch.zeros(4, dtype=torch.int64)), copies)
    copies[1, 2, 0] = math.inf  # 0 * inf: its gradient is no number
    assert torch.equal(moving.moved(copies, torch.zeros(4, dtype=torch.int64)), copies)
    assert moving.moved(copies[:0], torch.zeros(0, dtype=torch.int64)).shape == (0, NOISY + 1, 5)


def test_the_network_is_left_as_it_was() -> None:
    """Evaluation mode where layers draw, and afterwards the mode, the parameters and their gradients as before."""
    seen: list[bool] = []

    class Watching(nn.Dropout):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(self.training)
            return super().forward(inputs)

    model = nn.Sequential(nn.Linear(5, 4), Watching(0.5), nn.Linear(4, 3)).train()
    before = [parameter.clone() for parameter in model.parameters()]
    _moving(model).moved(_copies(torch.rand(4, 5)), torch.zeros(4, dtype=torch.int64))
    assert seen
    assert not any(seen)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(parameter, value) for parameter, value in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("step", "share"), [(0, 0.1), (4, 0.1), (5, 0.2), (24, 0.5), (44, 0.9), (45, 1.0), (49, 1.0), (50, 1.0), (10_000, 1.0)]
)
def test_the_radius_grows_over_the_first_epochs_by_declared_numbers(step: int, share: float) -> None:
    assert Ascent(0.25, 2, warm_up_epochs=10, steps_per_epoch=5).radius_at(step) == pytest.approx(0.25 * share)
    assert Ascent(0.25, 2).radius_at(step) == 0.25


WRONG = [
    {"radius": 0.0},
    {"radius": math.inf},
    {"radius": math.nan},
    {"steps": 0},
    {"warm_up_epochs": -1},
    {"steps_per_epoch": 0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_an_ascent_without_meaning_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="ascent cannot be made"):
        Ascent(**{"radius": 0.25, "steps": 2, **wrong})  # type: ignore[arg-type]


WARMING = Ascent(0.4, 2, warm_up_epochs=4, steps_per_epoch=1)


def _adversarial(
    inner: Callable[[nn.Module, RecordLoss], PerExamplePath],
) -> Callable[[nn.Module, RecordLoss], AdversarialCopies]:
    return lambda model, loss: AdversarialCopies(model, inner(model, loss), WARMING)


def _sources(
    folder: Path, mode: PassMode = ONE_BY_ONE, inner: type[FastPath | VmapPath] = FastPath
) -> tuple[PrivateGradients, Problem]:
    given = problem(folder, augmentation=GaussianCopies(NOISY, SIGMA), path=_adversarial(inner), rows=4, mode=mode)
    return given.source, given


@pytest.mark.parametrize("mode", [PassMode(workers=3), PassMode(capture=True)])
def test_every_way_of_running_passes_gives_the_same_bits(tmp_path: Path, mode: PassMode) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain, _ = _sources(tmp_path / "plain")
    other, given = _sources(tmp_path / "other", mode)
    for step in (0, 1, 2, 5):
        one, two = plain.gradient(step), other.gradient(step)
        assert all(torch.equal(one[name], two[name]) for name in one)
    torch.set_num_threads(threads)
    assert all(module.training for module in given.model.modules())
    assert other.last is not None
    assert other.last.step == 5


def test_both_paths_give_the_same_gradients(tmp_path: Path) -> None:
    (fast, _), (mapped, _) = _sources(tmp_path / "fast"), _sources(tmp_path / "mapped", inner=VmapPath)
    for step in (0, 4):
        one, two = fast.gradient(step), mapped.gradient(step)
        assert all(torch.allclose(one[name], two[name], atol=1e-7) for name in one)


def test_a_step_looks_as_far_as_its_warm_up_says(tmp_path: Path) -> None:
    source, given = _sources(tmp_path)
    path = source._path
    assert isinstance(path, AdversarialCopies)
    copies = given.batching.copies(torch.full((3, FEATURES), 0.5, dtype=torch.float64), 0, 0)
    for step, radius in ((0, 0.1), (2, 0.3), (9, 0.4), (1, 0.2)):
        source.gradient(step)
        movement = (path.moved(copies, torch.zeros(3, dtype=torch.int64)) - copies)[:, 1]
        assert torch.allclose(movement.norm(dim=1), torch.tensor(radius, dtype=torch.float64), rtol=1e-5)
