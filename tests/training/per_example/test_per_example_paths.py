"""What both paths promise: records do not meet, nothing is left behind, sharing and freezing are right."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from per_example_oracle import CLASSES, Forward, mean_loss, one_at_a_time, records, same_bits_beside, worst_error
from torch import Tensor, nn
from torch.nn import functional

from twinproof.errors import ModelError
from twinproof.training.per_example import (
    FastPath,
    Instantiated,
    PerExampleGradient,
    PerExamplePath,
    RecordGradients,
    VmapPath,
    handles,
)
from twinproof.training.per_example import fast as registry
from twinproof.training.per_example.fast import Call, Passage, recording

SHAPE = (2, 8, 8)
MakePath = Callable[[nn.Module], PerExamplePath]
PATHS: dict[str, MakePath] = {
    "fast": lambda model: FastPath(model, mean_loss),
    "fast, channels last": lambda model: FastPath(model, mean_loss, channels_last=True),
    "vmap": lambda model: VmapPath(model, mean_loss),
}
both_paths = pytest.mark.parametrize("path", PATHS)


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A small convolutional network with every kind of layer that takes images."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, groups=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.LayerNorm(24),
        nn.Linear(24, 20),
        nn.Tanh(),
        nn.Linear(20, CLASSES),
    ).to(dtype)


class Mixing(nn.Module):
    """Subtracts the mean over the batch: records meet."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(images - images.mean(0))
        return logits


@both_paths
@pytest.mark.parametrize("other", ["random", "nan", "inf", "huge"])
def test_one_record_keeps_every_bit_beside_any_others(path: str, other: str) -> None:
    inputs, labels = records(SHAPE, 5, 3, torch.float32)
    others, other_labels = records(SHAPE, 5, 3, torch.float32, seed=77)
    if other != "random":
        others.fill_({"nan": float("nan"), "inf": float("inf"), "huge": 1e30}[other])
    subject = PATHS[path](network())
    for row in (0, 2, 4):
        assert same_bits_beside(subject, inputs, labels, others, other_labels, row)


@both_paths
def test_embedding_keeps_every_bit_beside_any_others(path: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(20, CLASSES))
    inputs, labels = records((5,), 4, 2, torch.float32, ids=6)
    others, other_labels = records((5,), 4, 2, torch.float32, ids=6, seed=5)
    assert same_bits_beside(PATHS[path](model), inputs, labels, others, other_labels, 1)


def test_mixing_model_changes_a_bit_in_the_fast_path() -> None:
    inputs, labels = records(SHAPE, 5, 3, torch.float32)
    others, other_labels = records(SHAPE, 5, 3, torch.float32, seed=77)
    assert not same_bits_beside(FastPath(Mixing(), mean_loss), inputs, labels, others, other_labels, 2)


@both_paths
def test_whole_network_equals_one_record_at_a_time(path: str) -> None:
    model = network(torch.float64)
    inputs, labels = records(SHAPE, 4, 3, torch.float64)
    found = PATHS[path](model).gradients(inputs, labels)
    wanted = one_at_a_time(model, inputs, labels)
    assert list(found.by_name) == [name for name, _ in model.named_parameters()]
    assert worst_error(found, wanted) <= 1e-10
    losses = torch.stack([mean_loss(model(record), label) for record, label in zip(inputs, labels, strict=True)])
    torch.testing.assert_close(found.losses, losses.detach())
    assert not found.losses.requires_grad
    total = sum(values.flatten(1).square().sum(1) for values in wanted.values())
    torch.testing.assert_close(found.squared_norms(), total, rtol=1e-10, atol=0)


@both_paths
def test_no_records(path: str) -> None:
    model = network()
    found = PATHS[path](model).gradients(torch.zeros(0, 3, *SHAPE), torch.zeros(0, dtype=torch.long))
    assert found.losses.shape == (0,)
    assert found.losses.dtype == torch.float32
    assert found.squared_norms().shape == (0,)
    for name, parameter in model.named_parameters():
        total = found.by_name[name].weighted_sum(torch.zeros(0, dtype=torch.float64))
        assert torch.equal(total, torch.zeros(parameter.shape, dtype=torch.float64))


@both_paths
def test_frozen_parameters_have_no_entry(path: str) -> None:
    model = network()
    model[0].requires_grad_(False)
    assert isinstance(model[3], nn.Conv2d)
    model[3].weight.requires_grad_(False)
    inputs, labels = records(SHAPE, 3, 2, torch.float32)
    found = PATHS[path](model).gradients(inputs, labels)
    assert {"0.weight", "0.bias", "3.weight"}.isdisjoint(found.by_name)
    assert "3.bias" in found.by_name
    assert worst_error(found, one_at_a_time(model, inputs, labels)) <= 1e-5


class Shared(nn.Module):
    """Calls one linear layer twice and one convolution twice, on inputs of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.lin = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.conv(torch.tanh(self.conv(rows[:, None]))[..., ::2]).squeeze(1)
        padded = functional.pad(hidden, (0, 6 - hidden.shape[1]))
        logits: Tensor = self.head(torch.tanh(self.lin(input=torch.tanh(self.lin(padded)))))
        return logits


class SharedNorms(nn.Module):
    """Norms and an embedding that are called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layer = nn.LayerNorm(4)
        self.group = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids).sum(1) + self.table(ids[:, 0]) ** 2
        hidden = self.layer(torch.tanh(self.layer(hidden)))
        logits: Tensor = self.head(self.group(torch.tanh(self.group(hidden))))
        return logits


@both_paths
@pytest.mark.parametrize(("make", "ids"), [(Shared, 0), (SharedNorms, 5)])
def test_a_layer_called_twice_adds_up(path: str, make: Callable[[], nn.Module], ids: int) -> None:
    torch.manual_seed(1)
    model = make().double()
    inputs, labels = records((6,), 3, 2, torch.float64, ids=ids)
    assert worst_error(PATHS[path](model).gradients(inputs, labels), one_at_a_time(model, inputs, labels)) <= 1e-10


class Partial(nn.Module):
    """One layer is never called, one only without a gradient, and one call does not reach the output."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, CLASSES)
        self.idle = nn.Linear(4, 4)
        self.detached = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        self.used(rows)
        with torch.no_grad():
            rows = self.detached(rows)
        logits: Tensor = self.used(rows)
        return logits


@both_paths
def test_layers_that_take_no_part_have_zero_gradients(path: str) -> None:
    model = Partial()
    inputs, labels = records((4,), 3, 2, torch.float32)
    found = PATHS[path](model).gradients(inputs, labels)
    assert found.by_name["idle.weight"].squared_norms().tolist() == [0.0] * 3
    assert found.by_name["detached.bias"].squared_norms().tolist() == [0.0] * 3
    assert worst_error(found, one_at_a_time(model, inputs, labels)) <= 1e-5


class Tied(nn.Module):
    """A bare parameter, and one weight used by two layers: only the vmap path can do this."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, CLASSES)
        self.register_buffer("shift", torch.rand(4))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.second(torch.tanh(self.first(rows * self.scale + self.shift)))
        hidden = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        logits: Tensor = self.head(hidden.mean(1))
        return logits


def test_vmap_takes_bare_tied_and_attention_parameters() -> None:
    torch.manual_seed(0)
    model = Tied().double()
    inputs, labels = records((3, 4), 3, 2, torch.float64)
    found = VmapPath(model, mean_loss).gradients(inputs, labels)
    assert list(found.by_name) == [name for name, _ in model.named_parameters()]
    assert worst_error(found, one_at_a_time(model, inputs, labels)) <= 1e-10


class Counting(nn.Module):
    """Changes a buffer in forward, in place or by a new tensor."""

    count: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.lin = nn.Linear(4, CLASSES)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        if self.in_place:
            self.count.add_(1)
        else:
            self.count = self.count + rows.mean()
        logits: Tensor = self.lin(rows)
        return logits


@both_paths
@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_changes_is_refused(path: str, in_place: bool) -> None:
    inputs, labels = records((4,), 3, 2, torch.float32)
    with pytest.raises(ModelError, match="count"):
        PATHS[path](Counting(in_place)).gradients(inputs, labels)


def changed_input(lin: nn.Linear, rows: Tensor) -> Tensor:
    """Writes into a layer's input after the layer read it."""
    hidden = rows * 2
    logits: Tensor = lin(hidden)
    hidden.add_(1)
    return logits + hidden[:, :CLASSES]


def batch_second(lin: nn.Linear, rows: Tensor) -> Tensor:
    """Puts the sequence before the batch, as older recurrent code does."""
    logits: Tensor = lin(rows.transpose(0, 1)).mean(0)
    return logits


@pytest.mark.parametrize(
    ("function", "shape", "match"),
    [(changed_input, (4,), r"changed in place[\s\S]*lin"), (batch_second, (5, 4), "first axis does not count")],
)
def test_what_the_fast_path_cannot_follow_is_refused(
    function: Callable[[nn.Linear, Tensor], Tensor], shape: tuple[int, ...], match: str
) -> None:
    inputs, labels = records(shape, 3, 2, torch.float32)
    with pytest.raises(ModelError, match=match):
        FastPath(Forward(function), mean_loss).gradients(inputs, labels)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2))), "one row of logits"),
        (nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)), "one row of logits"),
    ],
)
@both_paths
def test_wrong_output_is_refused(path: str, model: nn.Module, match: str) -> None:
    inputs, labels = records((4,), 3, 2, torch.float32)
    with pytest.raises(ModelError, match=match):
        PATHS[path](model).gradients(inputs, labels)


def branching(logits: Tensor, label: Tensor) -> Tensor:
    return logits.sum() if label.item() == 0 else -logits.sum()


@pytest.mark.parametrize(
    ("loss", "match"),
    [(lambda logits, label: logits[:, 0] * label, "not a scalar"), (branching, r"in branching: .*label\.item")],
)
@pytest.mark.parametrize("path", [FastPath, VmapPath])
def test_a_loss_that_is_no_scalar_or_cannot_be_mapped_is_refused(
    path: type[FastPath] | type[VmapPath], loss: Callable[[Tensor, Tensor], Tensor], match: str
) -> None:
    inputs, labels = records((4,), 3, 2, torch.float32)
    with pytest.raises(ModelError, match=match):
        path(nn.Linear(4, CLASSES), loss).gradients(inputs, labels)


def hooks_of(model: nn.Module) -> int:
    return sum(len(layer._forward_hooks) + len(layer._backward_hooks) for layer in model.modules())


@both_paths
def test_nothing_is_left_on_the_users_model(path: str) -> None:
    model = network().train()
    model[1].eval()
    names, modes = list(model.state_dict()), [layer.training for layer in model.modules()]
    inputs, labels = records(SHAPE, 3, 2, torch.float32)
    PATHS[path](model).gradients(inputs, labels)
    assert hooks_of(model) == 0
    assert list(model.state_dict()) == names
    assert [layer.training for layer in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def failing(lin: nn.Linear, rows: Tensor) -> Tensor:
    """Fails after its layer was called."""
    lin(rows)
    raise RuntimeError("planted")


@both_paths
def test_hooks_are_gone_after_an_error(path: str) -> None:
    model = Forward(failing)
    inputs, labels = records((4,), 3, 2, torch.float32)
    with pytest.raises((RuntimeError, ModelError), match="planted"):
        PATHS[path](model).gradients(inputs, labels)
    assert hooks_of(model) == 0


@contextmanager
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Hoarding(FastPath):
    """Wrong on purpose: keeps what it recorded, as a reference cycle would."""

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        self.kept: Sequence[Passage] = []
        with recording({"3": self.model.get_submodule("3")}, inputs.shape[0] * inputs.shape[1]) as recorder:
            found = super().gradients(inputs, labels)
        self.kept = recorder.passages
        return found


@pytest.mark.parametrize(("make", "freed"), [(FastPath, True), (VmapPath, True), (Hoarding, False)])
def test_activations_are_freed_without_the_garbage_collector(make: Callable[..., PerExamplePath], freed: bool) -> None:
    model = network()
    alive: list[weakref.ref[object]] = []

    def watch(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        # The memory itself, which detached tensors share; a tensor inside vmap has none to show.
        mapped = torch._C._functorch.is_batchedtensor(output) or torch._C._functorch.is_gradtrackingtensor(output)
        alive.append(weakref.ref(output if mapped else output.untyped_storage()))

    for index in (0, 1, 3, 4, 5):
        model[index].register_forward_hook(watch)
    subject = make(model, mean_loss)
    inputs, labels = records(SHAPE, 3, 2, torch.float32)
    with no_garbage_collector():
        found = subject.gradients(inputs, labels)
        assert len(alive) == 5
        assert all(reference() is None for reference in alive) is freed
        del found


def test_dropout_draws_for_each_record() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, CLASSES)).train()
    inputs, labels = records((4,), 1, 1, torch.float32)
    equal, equal_labels = inputs.expand(2, 1, 4), labels.expand(2)
    for path in PATHS.values():
        values = path(model).gradients(equal, equal_labels).by_name["2.weight"].instantiate()
        assert not torch.equal(values[0], values[1])


def test_works_inside_no_grad() -> None:
    model = network()
    inputs, labels = records(SHAPE, 3, 2, torch.float32)
    wanted = one_at_a_time(model, inputs, labels)
    with torch.no_grad():
        for path in PATHS.values():
            assert worst_error(path(model).gradients(inputs, labels), wanted) <= 1e-4


class Scale(nn.Module):
    """A user's own layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(width))

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.factor


def test_a_user_can_register_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_HANDLERS", dict(registry._HANDLERS))
    model = nn.Sequential(nn.Linear(4, 5), Scale(5), nn.Linear(5, CLASSES))
    inputs, labels = records((4,), 3, 2, torch.float32)
    with pytest.raises(ModelError, match=r"without a fast rule[\s\S]*1.factor"):
        FastPath(model, mean_loss).gradients(inputs, labels)

    @handles(Scale)
    def scale(layer: Scale, calls: Sequence[Call], number: int) -> dict[str, PerExampleGradient]:
        return {
            "factor": Instantiated(sum((c.inputs * c.errors).reshape(number, -1, 5).sum(1) for c in calls) + torch.zeros(()))
        }

    found = FastPath(model, mean_loss).gradients(inputs, labels)
    assert worst_error(found, one_at_a_time(model, inputs, labels)) <= 1e-5


def test_a_handler_must_cover_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._HANDLERS, nn.Linear, lambda layer, calls, number: {})
    inputs, labels = records((4,), 3, 2, torch.float32)
    with pytest.raises(ModelError, match="does not cover"):
        FastPath(nn.Linear(4, CLASSES), mean_loss).gradients(inputs, labels)


def test_channels_last_only_changes_the_layout() -> None:
    model = network(torch.float64)
    inputs, labels = records(SHAPE, 3, 2, torch.float64)
    layouts: list[bool] = []
    model[0].register_forward_hook(lambda layer, args, output: layouts.append(output.stride(1) == 1))
    plain = FastPath(model, mean_loss).gradients(inputs, labels)
    turned = FastPath(model, mean_loss, channels_last=True).gradients(inputs, labels)
    assert layouts == [False, True]
    for name, gradient in plain.by_name.items():
        torch.testing.assert_close(turned.by_name[name].instantiate(), gradient.instantiate(), rtol=1e-10, atol=1e-12)
