"""The choice of a path: fast where it is proven, vmap elsewhere, refusal where neither is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from per_example_oracle import CLASSES, Forward, mean_loss, one_at_a_time, records, worst_error
from torch import Tensor, nn
from torch.nn import functional

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.networks import NETWORKS, build_network
from twinproof.training.per_example import FastPath, VmapPath, choose_path
from twinproof.training.per_example import choose as trial
from twinproof.training.per_example import fast as registry
from twinproof.training.per_example.choose import PathName
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient
from twinproof.training.per_example.layers import linear
from twinproof.training.per_example.paths import RecordGradients, RecordLoss


def plain(lin: nn.Linear, rows: Tensor) -> Tensor:
    return functional.linear(rows, lin.weight, lin.bias)


def centred(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows - rows.mean(0))
    return logits


def weight_twice(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows) + functional.linear(rows, lin.weight)
    return logits


def batch_second(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows.T.reshape(rows.shape)) + rows[:, :3]
    return logits


def centred_in_training(model: nn.Module) -> Callable[[nn.Linear, Tensor], Tensor]:
    return lambda lin, rows: lin(rows - rows.mean(0)) if model.training else lin(rows)


def two_rows_on(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows + rows.roll(2, 0))
    return logits


def branching(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows) if rows.sum() > 0 else lin(-rows)
    return logits


def image_network(*, view: bool = False) -> nn.Module:
    class Viewing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.view(images.shape[0], -1)

    torch.manual_seed(0)
    flatten = Viewing() if view else nn.Flatten()
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), flatten, nn.Linear(64, CLASSES))


def choose(model: nn.Module, shape: tuple[int, ...] = (4,), path: PathName = "auto", copies: int = 2) -> FastPath | VmapPath:
    chosen = choose_path(model, mean_loss, shape, CLASSES, copies=copies, path=path)
    assert isinstance(chosen, FastPath | VmapPath)
    return chosen


def test_fast_with_channels_last_for_images_on_a_cpu() -> None:
    chosen = choose(image_network(), (1, 8, 8))
    assert isinstance(chosen, FastPath)
    assert chosen.channels_last


def test_a_forward_that_cannot_take_the_layout_keeps_its_own() -> None:
    chosen = choose(image_network(view=True), (1, 8, 8))
    assert isinstance(chosen, FastPath)
    assert not chosen.channels_last


def test_vmap_on_request() -> None:
    assert isinstance(choose(nn.Linear(4, CLASSES), path="vmap"), VmapPath)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (plain, "differs from the vmap path"),
        (weight_twice, "differs from the vmap path"),
        (centred, "changes with the other records"),
        (batch_second, "changes with the other records"),
        (two_rows_on, "changes with the other records"),
    ],
)
def test_a_forward_that_steps_around_the_layers_falls_back(
    function: Callable[[nn.Linear, Tensor], Tensor], reason: str, copies: int
) -> None:
    model = Forward(function)
    chosen = choose(model, copies=copies)
    assert isinstance(chosen, VmapPath)
    assert reason in chosen.reason
    with pytest.raises(ModelError, match=reason):
        choose(model, path="fast", copies=copies)
    inputs, labels = records((4,), 3, copies, torch.float32)
    assert worst_error(chosen.gradients(inputs, labels), one_at_a_time(model, inputs, labels)) <= 1e-5


class ZeroHead(nn.Module):
    """Ends in a layer that starts at zero, behind which every gradient is zero until training has begun."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = Forward(function)
        self.head = nn.Linear(CLASSES, CLASSES)
        nn.init.zeros_(self.head.weight)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(rows))
        return logits


@pytest.mark.parametrize("function", [plain, weight_twice, centred])
def test_a_head_that_starts_at_zero_hides_nothing(function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    model = ZeroHead(function)
    assert isinstance(choose(model), VmapPath)
    assert not model.head.weight.any()


def test_mixing_only_in_training_mode_is_found() -> None:
    model = Forward(plain)
    model.function = centred_in_training(model)
    assert isinstance(choose(model.train()), VmapPath)
    assert isinstance(choose(model.eval()), FastPath)


def test_mixing_with_later_records_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves small batches alone: three records would not show it."""
    model = Forward(lambda lin, rows: lin(rows) + (lin(rows)[6:].mean() * lin(rows) if len(rows) > 6 else 0))
    assert isinstance(choose(model), VmapPath)
    monkeypatch.setattr(trial, "_RECORDS", 3)
    assert isinstance(choose(model), FastPath)


def test_wrong_handler_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._HANDLERS, nn.Linear, lambda layer, calls, number: linear(layer, calls[:1], number))
    model = Forward(lambda lin, rows: lin(rows) * lin(2 * rows))
    assert isinstance(choose(model), VmapPath)


def scaled_handler(factor: float, *dtypes: torch.dtype) -> registry.Handler:
    """The rule of linear layers, wrong by a factor for some dtypes."""

    def handler(layer: nn.Linear, calls: Sequence[registry.Call], records: int) -> dict[str, PerExampleGradient]:
        found = {name: gradient.instantiate() for name, gradient in linear(layer, calls, records).items()}
        return {name: Instantiated(value * (factor if value.dtype in dtypes else 1)) for name, value in found.items()}

    return handler


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    ("factor", "dtypes", "reason"),
    [
        (1 + 1e-4, (torch.float32, torch.float64), "differs from the vmap path"),
        (1 - 1e-7, (torch.float32, torch.float64), "differs from the vmap path"),
        (1.2, (torch.float32,), "in torch.float32 is .* away from"),
    ],
)
def test_a_handler_that_is_wrong_by_a_little_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, factor: float, dtypes: tuple[torch.dtype, ...], reason: str, copies: int
) -> None:
    model = image_network()
    assert isinstance(choose(model, (1, 8, 8), copies=copies), FastPath)
    monkeypatch.setitem(registry._HANDLERS, nn.Linear, scaled_handler(factor, *dtypes))
    chosen = choose(model, (1, 8, 8), copies=copies)
    assert isinstance(chosen, VmapPath)
    assert re.search(reason, chosen.reason)


class Uncopyable(Forward):
    """Cannot be copied."""

    def __deepcopy__(self, _memo: object) -> nn.Module:
        raise TypeError("cannot be copied")


class ItsOwnCopy(Forward):
    """Claims to be its own copy; casting that would change the user's model."""

    def __deepcopy__(self, _memo: object) -> nn.Module:
        return self


def keeps_float32(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows.float())
    return logits


def calls_layer(lin: nn.Linear, rows: Tensor) -> Tensor:
    logits: Tensor = lin(rows)
    return logits


def weighted_loss(logits: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(logits, label.expand(logits.shape[0]), weight=torch.arange(1.0, CLASSES + 1))


@pytest.mark.parametrize(
    ("kind", "function", "loss"),
    [
        (Uncopyable, calls_layer, mean_loss),
        (ItsOwnCopy, calls_layer, mean_loss),
        (Forward, keeps_float32, mean_loss),
        (Forward, calls_layer, weighted_loss),
    ],
)
def test_what_cannot_be_copied_or_cast_is_compared_as_it_is(
    kind: type[Forward], function: Callable[[nn.Linear, Tensor], Tensor], loss: RecordLoss
) -> None:
    model = kind(function)
    assert isinstance(choose_path(model, loss, (4,), CLASSES, copies=2), FastPath)
    assert model.lin.weight.dtype == torch.float32
    model.function = weight_twice if function is calls_layer else lambda lin, rows: weight_twice(lin, rows.float())
    chosen = choose_path(model, loss, (4,), CLASSES, copies=2)
    assert isinstance(chosen, VmapPath)
    assert "differs from the vmap path" in chosen.reason


@pytest.mark.parametrize("view", [False, True])
def test_both_layouts_share_one_oracle(monkeypatch: pytest.MonkeyPatch, view: bool) -> None:
    dtypes: list[torch.dtype] = []
    real = VmapPath.gradients

    def counted(path: VmapPath, inputs: Tensor, labels: Tensor) -> RecordGradients:
        dtypes.append(inputs.dtype)
        return real(path, inputs, labels)

    monkeypatch.setattr(VmapPath, "gradients", counted)
    chosen = choose(image_network(view=view), (1, 8, 8))
    assert isinstance(chosen, FastPath)
    assert chosen.channels_last is not view
    assert dtypes == [torch.float64]


SHAPES = {"mlp": (64,), "relu-mlp": (64,), "small-cnn": (1, 8, 8), "tramer-boneh-cnn": (1, 28, 28)}
COLOUR = (3, 32, 32)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_of_ours_takes_the_fast_path(name: str) -> None:
    """In float32, at the size people use them: ties of ReLUs must raise no alarm."""
    torch.manual_seed(0)
    shape = SHAPES.get(name, COLOUR)
    chosen = choose_path(build_network(name, shape, 10), mean_loss, shape, 10, copies=2)
    assert isinstance(chosen, FastPath), getattr(chosen, "reason", "")
    assert chosen.channels_last is (len(shape) == 3)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Conv1d(1, 2, 2), nn.PReLU(), nn.Flatten(), nn.Linear(6, CLASSES)), "1.weight: PReLU"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, CLASSES)), "without a fast rule"),
    ],
)
def test_unsupported_layers_fall_back(model: nn.Module, reason: str) -> None:
    shape = (1, 4) if isinstance(model, nn.Sequential) else (4,)
    chosen = choose(model, shape)
    assert isinstance(chosen, VmapPath)
    assert reason in chosen.reason
    with pytest.raises(ModelError, match="fast path cannot be used"):
        choose(model, shape, path="fast")


def test_tied_weights_fall_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, CLASSES))
    assert isinstance(model[0], nn.Linear)
    assert isinstance(model[2], nn.Linear)
    model[2].weight = model[0].weight
    chosen = choose(model)
    assert isinstance(chosen, VmapPath)
    assert "shared by two places" in chosen.reason


@pytest.mark.parametrize("path", ["auto", "fast", "vmap"])
def test_control_flow_on_values_is_refused_and_named(path: PathName) -> None:
    with pytest.raises(ModelError, match=r"in branching: .*rows\.sum\(\) > 0[\s\S]*data-dependent control flow"):
        choose(Forward(branching), path=path)


@pytest.mark.parametrize("path", ["auto", "fast", "vmap"])
def test_cross_example_layers_are_refused(path: PathName) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    with pytest.raises(ModelError, match="BatchNorm1d"):
        choose(model, path=path)


class Running(nn.Module):
    """Keeps a running mean by hand: no batch norm to see, the same leak."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, CLASSES)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, rows: Tensor) -> Tensor:
        self.mean.lerp_(rows.detach().mean(0), 0.1)
        logits: Tensor = self.lin(rows)
        return logits


def test_a_running_buffer_is_refused_and_put_back() -> None:
    model = Running()
    buffer = model.mean
    with pytest.raises(ModelError, match=r"changes a buffer[\s\S]*mean"):
        choose(model)
    assert model.mean is buffer
    assert torch.equal(model.mean, torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_in_training_mode_stays_fast(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)).to(dtype).train()
    assert isinstance(choose(model), FastPath)
    assert all(layer.training for layer in model.modules())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("path", ["auto", "vmap"])
def test_the_trial_leaves_no_trace(path: PathName, training: bool) -> None:
    model = image_network().train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    choose(model, (1, 8, 8), path)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter is parameters[name] and parameter.grad is None for name, parameter in model.named_parameters())
    assert all(layer.training is training and not layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize("function", [branching, plain])
def test_a_refusal_leaves_no_trace(function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    model = Forward(function)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError):
        choose(model, path="fast")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_token_ids_come_from_the_example() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, CLASSES))
    example = torch.zeros(1, 5, dtype=torch.long)
    chosen = choose_path(model, mean_loss, (5,), CLASSES, copies=2, example=example)
    assert isinstance(chosen, FastPath)
    with pytest.raises(ModelError, match="cannot process a record"):
        choose(model, (5,))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Linear(5, CLASSES), "cannot process a record of the declared shape"),
        (nn.Linear(4, CLASSES + 1), "does not fit the classes"),
        (nn.Linear(4, CLASSES).requires_grad_(False), "no parameter to train"),
    ],
)
def test_unfit_networks_are_refused(model: nn.Module, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        choose(model)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown path"):
        choose(nn.Linear(4, CLASSES), path="quick")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one copy"):
        choose(nn.Linear(4, CLASSES), copies=0)
