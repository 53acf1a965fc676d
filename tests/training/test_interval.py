"""Interval bounds in training: boxes that hold the ball, margins below the minimum, growth, networks that have none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.compute.devices import Captured
from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.interval import DifferenceMagnitude, Magnitude, begin_for_bounds
from twinproof.layers.networks import build_network
from twinproof.training import interval
from twinproof.training.interval import GrowingIntervals, Growth, IntervalView, interval_loss
from twinproof.training.per_example import FastPath, VmapPath, choose_path
from twinproof.training.per_example.paths import SinglePath

SAMPLES, ROWS, SIZE = 2000, 4, 0.15
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu-mlp": (lambda: build_network("relu-mlp", (6,), 3), (6,)),
    "interval-cnn": (lambda: build_network("interval-cnn", (1, 8, 8), 4), (1, 8, 8)),
    "contrast-cnn": (lambda: build_network("contrast-cnn", (1, 8, 8), 4), (1, 8, 8)),
    "pools, groups and a nested part": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False),
            nn.MaxPool2d(2, padding=1),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(2, stride=1),
            nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)),
        ),
        (2, 12, 12),
    ),
    "one dimension": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding="same", dilation=2),
            nn.MaxPool1d(2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(3),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (2, 9),
    ),
}


def _shared() -> nn.Module:
    """One ReLU and one linear layer, each in two places."""
    relu, layer = nn.ReLU(), nn.Linear(6, 6)
    return nn.Sequential(layer, relu, layer, relu, nn.Linear(6, 3))


NETWORKS["layers that stand twice"] = (_shared, (6,))


def _network(name: str, seed: int = 3) -> tuple[nn.Module, tuple[int, ...]]:
    make, shape = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(), shape


def _classes(view: IntervalView) -> int:
    return int((view.columns - 1) ** 0.5)


def _bounds(view: IntervalView, rows: Tensor) -> Tensor:
    classes = _classes(view)
    with torch.no_grad():
        outputs: Tensor = view(rows)
    return outputs[:, classes:-1].reshape(-1, classes, classes)


def _rows(shape: tuple[int, ...], seed: int = 1) -> Tensor:
    """Some coordinates at the ends of the range, where the ball is cut."""
    draw = torch.rand(ROWS, *shape, generator=torch.Generator().manual_seed(seed))
    return (1.4 * draw - 0.2).clamp(0, 1)


def margins_hold(view: IntervalView, network: nn.Module, rows: Tensor, size: float) -> bool:
    """Whether the bounds are below the differences at thousands of points of each ball, half of them corners."""
    found = _bounds(view, rows)
    draw = torch.Generator().manual_seed(2)
    for row, bounds in zip(rows, found, strict=True):
        steps = 2 * torch.rand(SAMPLES, *row.shape, generator=draw) - 1
        steps[::2] = steps[::2].sign()
        with torch.no_grad():
            scores = network((row + size * steps).clamp(0, 1))
        differences = scores.unsqueeze(2) - scores.unsqueeze(1)
        if bool((bounds > differences.amin(0) + 1e-5).any()):
            return False
    return True


@pytest.mark.parametrize("size", [0.0, 0.02, SIZE])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_bounds_hold_at_thousands_of_points_of_the_ball(name: str, size: float) -> None:
    for seed in range(3):
        network, shape = _network(name, seed)
        view = IntervalView(network)
        view.set(size, 0.5)
        assert margins_hold(view, network, _rows(shape, seed), size)
        if size == 0:
            scores = network(_rows(shape, seed))
            assert torch.allclose(_bounds(view, _rows(shape, seed)), scores.unsqueeze(2) - scores.unsqueeze(1), atol=1e-5)


def corners_hold(seed: int, *, exact: bool = False) -> bool:
    """Whether bounds are below the least differences at the corners of tiny networks; of a linear one they are those.

    With ``exact`` the bounds of the linear network must be reached.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear = nn.Sequential(nn.Linear(5, 3)).double()
        deep = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    rows = 0.2 + 0.6 * torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    corners = SIZE * torch.tensor(list(product((-1.0, 1.0), repeat=5)), dtype=torch.float64)
    for network in (linear, deep):
        view = IntervalView(network)
        view.set(SIZE, 1.0)
        for row, bounds in zip(rows, _bounds(view, rows), strict=True):
            scores = network(row + corners).detach()
            least = (scores.unsqueeze(2) - scores.unsqueeze(1)).amin(0)
            if bool((bounds > least + 1e-7).any()) or (exact and network is linear and not torch.allclose(bounds, least)):
                return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_below_the_true_minimum_and_exact_for_one_layer(seed: int) -> None:
    assert corners_hold(seed, exact=True)


class Forgets(Magnitude):
    """Planted: radii through the weights instead of their magnitudes."""

    def forward(self, radii: Tensor) -> Tensor:
        signed: Tensor = self.layer(radii) - self.layer(torch.zeros_like(radii))
        return signed


def _rows_apart(self: DifferenceMagnitude, radii: Tensor) -> Tensor:
    """Planted: ||W_y| - |W_j|| for |W_y - W_j|."""
    weight = self.layer.weight.abs()
    apart = (weight.unsqueeze(1) - weight.unsqueeze(0)).abs()
    return functional.linear(radii, apart.flatten(0, 1)).view(-1, 3, 3)


@pytest.mark.parametrize("planted", ["signed weights", "rows apart", "half the ball", "a shared radius of the least"])
def test_planted_bounds_that_are_too_high_are_caught(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, fill = DifferenceMagnitude.forward, IntervalView.set
    if planted == "signed weights":
        monkeypatch.setattr(interval, "Magnitude", Forgets)
    elif planted == "rows apart":
        monkeypatch.setattr(DifferenceMagnitude, "forward", _rows_apart)
    elif planted == "half the ball":
        monkeypatch.setattr(IntervalView, "set", lambda self, size, share: fill(self, size / 2, share))
    else:
        monkeypatch.setattr(DifferenceMagnitude, "forward", lambda self, radii: forward(self, radii).amin(0, keepdim=True))
    assert not all(corners_hold(seed) for seed in range(8))


def test_the_ball_is_cut_to_the_range() -> None:
    layer = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [0.0]]))
    view = IntervalView(nn.Sequential(layer))
    view.set(0.3, 1.0)
    assert torch.allclose(_bounds(view, torch.tensor([[0.1], [0.9]]))[:, 0, 1], torch.tensor([0.0, 0.6]))
    assert torch.allclose(_bounds(view, torch.tensor([[0.1], [0.9]]))[:, 1, 0], torch.tensor([-0.4, -1.0]))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_is_that_of_the_label_against_the_worst_case(share: float) -> None:
    network, shape = _network("interval-cnn")
    view = IntervalView(network)
    view.set(0.05, share)
    rows = _rows(shape)
    outputs = view(rows)
    for label in range(4):
        worst = -_bounds(view, rows)[:, label]
        target = torch.full((ROWS,), label)
        clean = functional.cross_entropy(network(rows), target)
        wanted = (1 - share) * clean + share * functional.cross_entropy(worst, target)
        assert torch.allclose(interval_loss(outputs, torch.tensor(label)), wanted, atol=1e-6)
        assert bool((worst[:, label] == 0).all())


def test_parameters_have_the_networks_names_and_nothing_is_added_to_it() -> None:
    network, shape = _network("pools, groups and a nested part")
    state = {name: value.clone() for name, value in network.state_dict().items()}
    view = IntervalView(network)
    assert dict(view.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert all(one is other for one, other in zip(view.parameters(), network.parameters(), strict=True))
    assert list(view.state_dict()) == list(state) == list(network.state_dict())
    twin = copy.deepcopy(view)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(_rows(shape))[:, :-1].any(), "a copy uses its own modules"
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())


@pytest.mark.parametrize("name", list(NETWORKS))
def test_all_paths_agree_and_the_fast_one_is_taken(name: str) -> None:
    network, shape = _network(name)
    view = IntervalView(network)
    chosen = choose_path(view, interval_loss, shape, _classes(view), copies=1, columns=view.columns)
    assert isinstance(chosen, FastPath)
    exact = IntervalView(network.double())
    exact.set(0.1, 0.5)
    inputs, labels = _rows(shape).double().unsqueeze(1), torch.arange(ROWS) % _classes(view)
    found = [path(exact, interval_loss).gradients(inputs, labels) for path in (FastPath, VmapPath, SinglePath)]
    for parameter in found[2].by_name:
        one, other, wanted = (path.by_name[parameter].instantiate() for path in found)
        assert torch.allclose(one, wanted, rtol=1e-10, atol=1e-13)
        assert torch.allclose(other, wanted, rtol=1e-10, atol=1e-13)


class SharedRadius(IntervalView):
    """Planted: the widest box of the batch for every record."""

    def before_last(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        clean, centre, radius = super().before_last(rows)
        return clean, centre, radius.amax(0, keepdim=True).expand_as(radius)


def test_a_planted_radius_that_the_batch_shares_is_refused() -> None:
    network, shape = _network("interval-cnn")
    view = SharedRadius(network)
    found = choose_path(view, interval_loss, shape, 4, copies=1, columns=view.columns)
    assert isinstance(found, VmapPath), "there every record is alone"
    assert "changes with the other records" in found.reason


# --- growth --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ramp", "start", "wanted"),
    [
        (0.5, 0.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1]),
        (0.6, 0.2, [0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1, 1]),
        (0.0, 0.0, [1] * 10),
        (0.3, 0.3, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        (1.0, 0.0, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
    ],
)
def test_size_and_share_grow_by_the_step_and_stay_in_place(ramp: float, start: float, wanted: list[float]) -> None:
    network, _ = _network("relu-mlp")
    view = IntervalView(network)
    path = Growth(0.2, 0.8, 10, ramp, start).on(network, FastPath(view, interval_loss), originals=True)
    assert isinstance(path, GrowingIntervals)
    places = view.interval_size.data_ptr(), view.interval_share.data_ptr()
    for step in (*range(10), 3):  # a resumed run asks for any step
        path.begin(step, Key.from_seed(1))
        assert float(view.interval_size) == pytest.approx(0.2 * wanted[step], abs=1e-7)
        assert float(view.interval_share) == pytest.approx(0.8 * wanted[step], abs=1e-7)
    assert places == (view.interval_size.data_ptr(), view.interval_share.data_ptr()), "a recording reads them there"


@pytest.mark.parametrize("wrong", [{"size": 0.0}, {"share": 1.1}, {"ramp": 0.2, "start": 0.3}, {"steps": 0}], ids=str)
def test_growth_that_cannot_be_made(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="this growth cannot be made"):
        Growth(**{"size": 0.1, "share": 0.9, "steps": 10, **wrong})  # type: ignore[arg-type]


# --- networks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (build_network("mlp", (5,), 3), "Tanh"),
        (build_network("gelu-cnn", (1, 8, 8), 3), "GroupNorm"),
        (nn.Linear(3, 2), "Linear"),
        (nn.Sequential(), "no layer"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "ReLU"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Dropout()), nn.Linear(4, 2)), "Dropout"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(8, 2)), "reflect"),
    ],
)
def test_networks_without_bounds_are_refused_by_name(network: nn.Module, named: str) -> None:
    with pytest.raises(ModelError) as caught:
        IntervalView(network)
    assert named in caught.value.got
    assert caught.value.fix
    assert (caught.value.where == "layer 0.1") == (named == "Dropout")


def test_a_layer_begun_for_bounds_neither_widens_nor_narrows_a_box() -> None:
    """Shi et al.: |W| r is about twice r, and the ReLU halves it. 200 layers, to 2 %; the usual weights are far off."""
    ratios: dict[str, list[float]] = {"bounds": [], "usual": []}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for _ in range(200):
            layer = nn.Linear(256, 256)
            for name in ("usual", "bounds"):
                if name == "bounds":
                    begin_for_bounds(nn.Sequential(layer))
                    assert not layer.bias.any()
                radii = Magnitude(layer)(torch.ones(1, 256))
                ratios[name].append(float(radii.mean().detach()))
    assert sum(ratios["bounds"]) / 200 == pytest.approx(2, rel=0.02)
    assert sum(ratios["usual"]) / 200 > 5


# --- on a GPU ------------------------------------------------------------------------------------------------------------


def _on_gpu(records: int = 32) -> tuple[nn.Module, IntervalView, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = build_network("interval-cnn", (1, 28, 28), 10).cuda()
    draw = torch.Generator().manual_seed(1)
    inputs = torch.rand(records, 1, 1, 28, 28, generator=draw).cuda()
    return network, IntervalView(network), inputs, torch.randint(0, 10, (records,), generator=draw).cuda()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_one_record_keeps_every_bit_beside_any_others() -> None:
    _, view, inputs, labels = _on_gpu()
    path = choose_path(view, interval_loss, (1, 28, 28), 10, copies=1, columns=view.columns)
    assert isinstance(path, FastPath), getattr(path, "reason", "")
    first = {name: value.instantiate()[0].clone() for name, value in path.gradients(inputs, labels).by_name.items()}
    for value in (float("nan"), 0.25):
        others = inputs.clone()
        others[1:] = value
        second = path.gradients(others, labels.roll(1).index_copy(0, torch.tensor([0]).cuda(), labels[:1])).by_name
        assert all(torch.equal(gradient, second[name].instantiate()[0]) for name, gradient in first.items())


def _put(place: Tensor, values: Tensor) -> None:
    place.copy_(values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recording_reads_the_size_of_its_step() -> None:
    network, view, inputs, labels = _on_gpu()
    path = Growth(0.2, 0.9, 10, 0.5).on(network, FastPath(view, interval_loss), originals=True)
    norms = torch.zeros(len(inputs), dtype=torch.float64, device="cuda")
    work = Captured(lambda: _put(norms, path.gradients(inputs, labels).squared_norms()), inputs.device)
    for step in (0, 1, 2, 3, 4, 9):
        path.begin(step, Key.from_seed(1))
        work()
        assert torch.allclose(norms, path.gradients(inputs, labels).squared_norms(), rtol=1e-6)
    assert work.is_recorded
