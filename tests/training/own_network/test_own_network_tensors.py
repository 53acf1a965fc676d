"""Tensors of a model under watch: whatever writes to one is seen, by its value and not by its version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from own_modules.harmful import ExtraState, StateDictHook, SwappedWeights
from own_modules.harmless import Mlp
from twinproof.errors import ModelError
from twinproof.layers.module_state import same_bits
from twinproof.training.loop import check_state_dict
from twinproof.training.own_network import state as tensors
from twinproof.training.own_network.state import TensorWatch, UnchangedTensors, WatchedSource
from twinproof.training.sources import GradientSource


class Model(nn.Module):
    """A trained, a frozen and a buffered tensor; NaN is a value like any other."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Linear(3, 2)
        self.frozen = nn.Parameter(torch.tensor([1.0, torch.nan]), requires_grad=False)
        self.register_buffer("kept", torch.tensor([0.0, torch.nan]))


def write_data(model: Model) -> None:
    model.kept.data[0] = 5.0


def write_frozen(model: Model) -> None:
    model.frozen.data.add_(1)


def write_trained(model: Model) -> None:
    model.trained.bias.data[1] += 1e-6


def write_numpy(model: Model) -> None:
    model.trained.weight.detach().numpy()[0, 0] += 1


def write_sign_of_zero(model: Model) -> None:
    model.kept.data[0] = -0.0


def replace(model: Model) -> None:
    model._buffers["kept"] = model.kept.clone()


def add(model: Model) -> None:
    model.register_buffer("more", torch.zeros(1))


def remove(model: Model) -> None:
    del model._buffers["kept"]


WRITES: tuple[tuple[Callable[[Model], None], str], ...] = (
    (write_data, "kept"),
    (write_frozen, "frozen"),
    (write_trained, "trained.bias"),
    (write_numpy, "trained.weight"),
    (write_sign_of_zero, "kept"),
    (replace, "kept"),
    (add, "more"),
    (remove, "kept"),
)


class Writing(GradientSource):
    """Does something to the model while it makes a gradient."""

    def __init__(self, model: Model, work: Callable[[Model], None]) -> None:
        self.model, self.work = model, work

    def gradient(self, step: int) -> dict[str, Tensor]:
        self.work(self.model)
        return {}


@pytest.mark.parametrize(("work", "name"), WRITES, ids=lambda value: getattr(value, "__name__", None))
def test_a_gradient_that_writes_to_the_model_is_an_error(work: Callable[[Model], None], name: str) -> None:
    model = Model()
    source = WatchedSource(Writing(model, work), TensorWatch(model, alike(model)))
    with pytest.raises(ModelError, match=f"where: {name}"):
        source.gradient(0)
    model = Model()
    before = UnchangedTensors(model)
    work(model)
    with pytest.raises(ModelError, match=name):
        before.check()


def alike(model: Model) -> Model:
    start = Model()
    start.load_state_dict(model.state_dict())
    return start


def test_updates_are_no_violation() -> None:
    model = Model()
    watch = TensorWatch(model, alike(model))
    for _ in range(3):
        watch.compare()
        model.trained.weight.data.add_(1)
        watch.updated()
    watch.compare()
    watch.check()


def test_a_frozen_tensor_does_not_move_in_an_update_either() -> None:
    model = Model()
    watch = TensorWatch(model, alike(model))
    model.frozen.data.add_(1)
    watch.updated()
    with pytest.raises(ModelError, match="frozen"):
        watch.compare()


def test_a_session_that_goes_on_compares_with_the_start_of_the_run() -> None:
    start, model = Model(), Model()
    model.load_state_dict(start.state_dict())
    model.kept.data[0] = 3.0  # as a checkpoint of a training that nobody watched would have it
    with pytest.raises(ModelError, match="kept"):
        TensorWatch(model, start).compare()
    TensorWatch(model, start, ["kept"]).compare()


def test_a_watch_by_versions_would_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: what 12d5acf looked at."""
    monkeypatch.setattr(tensors, "bits", lambda value: torch.tensor(0 if value.requires_grad else value._version))
    model = Model()
    watch = TensorWatch(model, alike(model))
    write_data(model)
    watch.compare()


@pytest.mark.parametrize("kind", [ExtraState, SwappedWeights, StateDictHook])
def test_a_state_dict_that_is_not_the_model_is_refused(kind: type[Any]) -> None:
    model = kind()
    if isinstance(model, StateDictHook | SwappedWeights):
        model(torch.rand(4, 1, 8, 8))
    with pytest.raises(ModelError):
        check_state_dict(model)
    assert sorted(check_state_dict(Mlp())) == sorted(Mlp().state_dict())


def test_tied_weights_keep_both_names() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert sorted(check_state_dict(model)) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_bits_tell_what_equality_does_not() -> None:
    nan = torch.tensor([torch.nan])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert same_bits(torch.tensor([True]), torch.tensor([True]))
