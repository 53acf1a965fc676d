"""What a network keeps is seen wherever a module may hold it; what it draws from is found."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.layers.module_state import (
    KeptState,
    differences,
    foreign_generators,
    generators_of,
    own_copy,
    paths_of,
    same_bits,
    tensor_digests,
)


class Slotted:
    """Has no dictionary."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0


class Keeper(nn.Module):
    """Holds things of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("buffer", torch.zeros(3))
        self.buffer: Tensor
        self.number, self.text, self.nothing = 1, "a", None
        self.array, self.tensor = np.zeros(2), torch.zeros(2, dtype=torch.bfloat16)
        self.listed, self.mapped, self.queue = [1, [2]], {"a": {3: torch.zeros(1)}}, deque([1])
        self.object, self.seen = SimpleNamespace(deep=SimpleNamespace(value=1)), {1, 2}
        self.object.around = self.object
        self.hidden, self.slotted = [nn.Linear(1, 1)], Slotted()
        self.generator, self.python = torch.Generator().manual_seed(1), random.Random(1)
        self.numpy, self.counter = np.random.default_rng(1), itertools.count()


def _digests(model: nn.Module) -> dict[str, str]:
    return {**tensor_digests(model), **KeptState.of(model, shared=False).own}


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a parameter": (lambda one: one.layer.weight.data.add_(1e-7), "layer.weight"),
    "a buffer": (lambda one: one.buffer.data.fill_(1), "buffer"),
    "a number": (lambda one: setattr(one, "number", 2), "number"),
    "a text": (lambda one: setattr(one, "text", "b"), "text"),
    "nothing": (lambda one: setattr(one, "nothing", 0), "nothing"),
    "an array": (lambda one: one.array.fill(1), "array"),
    "a tensor": (lambda one: one.tensor.fill_(1), "tensor"),
    "a list in a list": (lambda one: one.listed[1].append(3), "listed[1]"),
    "a tensor in a mapping": (lambda one: one.mapped["a"][3].add_(1), "mapped['a'][3]"),
    "a queue": (lambda one: one.queue.append(2), "queue"),
    "a set": (lambda one: one.seen.add(3), "seen"),
    "an object in an object": (lambda one: setattr(one.object.deep, "value", 2), "object.deep.value"),
    "a slot": (lambda one: setattr(one.slotted, "value", 2.0), "slotted.value"),
    "a generator of torch": (lambda one: torch.rand(1, generator=one.generator), "generator"),
    "a generator of Python": (lambda one: one.python.random(), "python"),
    "a generator of NumPy": (lambda one: one.numpy.random(), "numpy"),
    "a counter": (lambda one: next(one.counter), "counter"),
    "something new": (lambda one: setattr(one, "new", 1), "new"),
    "a hook": (lambda one: one.register_forward_hook(lambda *_: None), "_forward_hooks"),
    "a layer in a list": (lambda one: one.hidden[0].bias.data.add_(1), "hidden[0]._parameters['bias']"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_named(name: str) -> None:
    change, where = CHANGES[name]
    keeper = Keeper()
    before = _digests(keeper)
    assert _digests(keeper) == _digests(copy.deepcopy(keeper)) == before
    change(keeper)
    assert where in " ".join(differences(before, _digests(keeper)))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([math.nan, 0.0]), torch.tensor([math.nan, 0.0]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), False),
        (torch.ones(2, 1), torch.ones(1, 2), False),
        (torch.tensor([True, False]), torch.tensor([True, True]), False),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
    ],
)
def test_tensors_are_the_same_only_bit_for_bit(one: Tensor, other: Tensor, same: bool) -> None:
    assert same_bits(one, other) == same


def test_foreign_generators_are_seen_to_move() -> None:
    before = foreign_generators()
    assert foreign_generators() == before
    random.random()
    moved = foreign_generators()
    assert moved != before
    np.random.standard_normal()  # draws two and keeps one back
    drawn = foreign_generators()
    np.random.standard_normal()
    assert len({moved, drawn, foreign_generators()}) == 3


def test_tensors_alone_are_parameters_and_buffers() -> None:
    assert set(tensor_digests(Keeper())) == {"layer.weight", "layer.bias", "buffer"}


def test_copied_layers_know_their_path_wherever_they_are_put() -> None:
    copied = own_copy(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh()))
    assert copied is not None
    _, _, relu, tanh = copied.modules()
    assert list(paths_of(nn.Sequential(nn.Identity(), relu, tanh)).values())[1:] == ["0", "0.0", "1"]


def test_generators_that_modules_hold_are_found() -> None:
    keeper = Keeper()
    own = torch.Generator()
    keeper.layer.source = own  # type: ignore[assignment]
    assert generators_of(keeper, torch.device("cpu")) == (torch.default_generator, keeper.generator, own)
