"""The ensemble of attacks in training: uphill, inside ball and range, blind to labels, of a size drawn for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.networks import build_network
from twinproof.layers.noise import silenced
from twinproof.layers.noise_placement import with_two_noises
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example.paths import VmapPath
from twinproof.training.stobatch import ATTACKS, AdversarialEnsemble, Ensemble

BENIGN, SHAPE, SIZE = 2, (1, 8, 8), 0.1
PAPERS = Ensemble(size=SIZE, steps=10)
Kind = type[AdversarialEnsemble]


@pytest.fixture(autouse=True)
def _fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


@pytest.fixture(scope="module", params=["mlp", "stobatch-cnn"])
def trained(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Tensor]:
    """A network that knows its digits under both noises, and 400 of them."""
    dataset = load(DataConfig(source="digits"))
    inputs = torch.from_numpy(dataset.train.inputs.astype(np.float32)) / dataset.levels
    labels = torch.from_numpy(dataset.train.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = with_two_noises(build_network(request.param, SHAPE, 10), SHAPE, 0.1, 0.02)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(150):
            rows = torch.randint(0, len(inputs), (64,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model, inputs[:400], labels[:400]


def _attacking(model: nn.Module, kind: Kind = AdversarialEnsemble, ensemble: Ensemble = PAPERS) -> AdversarialEnsemble:
    return kind(model, VmapPath(model, mean_cross_entropy), ensemble)


def _copies(inputs: Tensor) -> Tensor:
    return inputs.unsqueeze(1).repeat(1, BENIGN + len(ATTACKS), 1, 1, 1)


def _crafted(path: AdversarialEnsemble, inputs: Tensor, labels: Tensor) -> Tensor:
    return path.moved(_copies(inputs), labels)[:, BENIGN:]


def _losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad(), silenced(model):
        return nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def raised(path: AdversarialEnsemble, inputs: Tensor, labels: Tensor) -> list[float]:
    """For each attack the share of records whose loss, for the class that is predicted for them, it raises."""
    with torch.no_grad(), silenced(path.model):
        predicted = path.model(inputs).argmax(dim=1)
    before, crafted = _losses(path.model, inputs, predicted), _crafted(path, inputs, labels)
    losses = (_losses(path.model, crafted[:, number], predicted) for number in range(len(ATTACKS)))
    return [float((loss > before).float().mean()) for loss in losses]


class Descends(AdversarialEnsemble):
    """Planted: the wrong sign."""

    def _slopes(self, points: Tensor, label: Tensor) -> Tensor:
        return -super()._slopes(points, label)


class TooFar(AdversarialEnsemble):
    """Planted: twice as far."""

    def _crafted(self, record: Tensor) -> Tensor:
        return record + 2 * (super()._crafted(record) - record)


class LeavesRange(AdversarialEnsemble):
    """Planted: the whole size in every coordinate, whatever the range is."""

    def _crafted(self, record: Tensor) -> Tensor:
        return record + self._size * (super()._crafted(record) - record).sign()


class LeaksLabels(AdversarialEnsemble):
    """Planted: the true class is attacked."""

    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        def crafted(record: Tensor, label: Tensor) -> Tensor:
            return record + self._size * self._slopes(record.expand(3, *record.shape), label.expand(3)).sign()

        with torch.no_grad(), silenced(self.model):
            return torch.cat([inputs[:, :BENIGN], vmap(crafted)(inputs[:, 0], labels)], dim=1)


def test_every_attack_raises_the_loss_of_nearly_all_examples(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained
    assert min(raised(_attacking(model), inputs, labels)) >= 0.99
    assert max(raised(_attacking(model, Descends), inputs, labels)) < 0.2


def test_attacks_are_different_and_leave_the_benign_copies_alone(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained
    copies = _copies(inputs)
    moved = _attacking(model).moved(copies, labels)
    assert torch.equal(moved[:, :BENIGN], copies[:, :BENIGN])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(moved[:, BENIGN + one], moved[:, BENIGN + other])


def inside(path: AdversarialEnsemble, inputs: Tensor, labels: Tensor) -> bool:
    crafted = _crafted(path, inputs, labels)
    in_ball = bool(((crafted - inputs.unsqueeze(1)).abs() <= SIZE + 1e-6).all())
    return in_ball and bool((crafted >= 0).all()) and bool((crafted <= 1).all())


@pytest.mark.parametrize(("kind", "right"), [(AdversarialEnsemble, True), (TooFar, False), (LeavesRange, False)])
def test_attacked_copies_stay_in_ball_and_range(trained: tuple[nn.Module, Tensor, Tensor], kind: Kind, right: bool) -> None:
    model, inputs, labels = trained
    assert inside(_attacking(model, kind), inputs, labels) is right


def test_a_longer_stride_is_held_by_the_ball(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained
    assert inside(_attacking(model, ensemble=Ensemble(SIZE, 3, stride=4.0)), inputs, labels)


@pytest.mark.parametrize(("kind", "right"), [(AdversarialEnsemble, True), (LeaksLabels, False)])
def test_labels_are_not_looked_at(trained: tuple[nn.Module, Tensor, Tensor], kind: Kind, right: bool) -> None:
    model, inputs, labels = trained

    def seen(given: Tensor) -> Tensor:
        torch.manual_seed(7)
        return _crafted(_attacking(model, kind), inputs[:50], given[:50])

    assert torch.equal(seen(labels), seen((labels + 1) % 10)) is right


def test_the_network_is_left_as_it_was(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained
    model.train()
    _crafted(_attacking(model), inputs[:4], labels[:4])
    assert model.training
    assert all(parameter.grad is None or not parameter.grad.isnan().any() for parameter in model.parameters())
    with torch.no_grad():
        assert not torch.equal(model(inputs[:4]), model(inputs[:4])), "its noise is on again"


def test_no_records_are_no_trouble(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained
    path = _attacking(model)
    assert path.moved(_copies(inputs[:0]), labels[:0]).shape[0] == 0
    assert path.gradients(_copies(inputs[:0]), labels[:0]).losses.shape == (0,)


KEY = Key.from_seed(3)


def sizes(size_at: Callable[[int], float], steps: int = 20_000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.sort([size_at(step) for step in range(steps)])


def is_uniform(found: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Kolmogorov and Smirnov, on (0, SIZE], with a false alarm below 1e-6 (sqrt(n) times the distance above 2.75)."""
    places = (np.arange(len(found)) + 0.5) / len(found)
    largest = float(np.abs(found / SIZE - places).max()) * len(found) ** 0.5
    return bool(found[0] > 0 and found[-1] <= SIZE and largest < 2.75)


def test_sizes_are_uniform_and_belong_to_key_and_step() -> None:
    assert is_uniform(sizes(lambda step: PAPERS.size_at(step, KEY)))
    assert PAPERS.size_at(4, KEY) == PAPERS.size_at(4, KEY)
    assert PAPERS.size_at(4, KEY) != PAPERS.size_at(5, KEY)
    assert PAPERS.size_at(4, KEY) != PAPERS.size_at(4, Key.from_seed(4))


@pytest.mark.parametrize("planted", [lambda step: SIZE, lambda step: 1.05 * PAPERS.size_at(step, KEY) % SIZE])
def test_sizes_that_are_fixed_or_drawn_a_little_wrong_are_caught(planted: Callable[[int], float]) -> None:
    assert not is_uniform(sizes(planted))


def test_each_step_attacks_with_its_own_size(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = trained[0], trained[1][:60], trained[2][:60]
    path = _attacking(model)
    reached = []
    for step in (0, 1, 2):
        path.begin(step, KEY)
        reached.append(float((_crafted(path, inputs, labels) - inputs.unsqueeze(1)).abs().max()))
        assert reached[-1] == pytest.approx(PAPERS.size_at(step, KEY), rel=1e-4)
    assert len(set(reached)) == 3


@pytest.mark.parametrize("wrong", [{"size": 0.0}, {"size": float("inf")}, {"steps": 0}, {"stride": 0.0}])
def test_attacks_that_cannot_be_made_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="these attacks cannot be made"):
        Ensemble(**({"size": 0.1, "steps": 3} | wrong))  # type: ignore[arg-type]


def test_an_operation_that_cannot_be_mapped_is_named() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, rows: Tensor) -> Tensor:
            return rows * self.weight if float(rows.sum()) > 0 else rows

    path = _attacking(Branches())
    with pytest.raises(ModelError, match="a record's attacks cannot be computed record by record"):
        path.moved(torch.rand(2, 5, 2), torch.zeros(2, dtype=torch.int64))
