"""What a network keeps in Python: found wherever it can be, equal for copies, blind to weights and mode."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from own_modules import harmful
from own_modules.harmless import PROVEN, SHAPE, Mlp
from twinproof.layers.module_state import KeptState, differences


class Keeper(Mlp):
    """Keeps one thing of each kind."""

    common: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.items: list[Any] = [{"deep": [1, 2]}]
        self.tensor = torch.zeros(3)
        self.array = np.zeros(3)
        self.generator = torch.Generator().manual_seed(1)
        self.python = random.Random(1)
        self.numpy = np.random.default_rng(1)
        self.counter = itertools.count()
        self.names = {"a", "b"}
        self.stranger = Stranger()
        self.alias = list(self.parameters())


class Stranger:
    """An object of the owner's own."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0


def set_item(keeper: Keeper) -> None:
    keeper.items[0]["deep"][1] = 3


CHANGES: tuple[tuple[str, Callable[[Keeper], object]], ...] = (
    ("calls", lambda keeper: setattr(keeper, "calls", 1)),
    ("items", set_item),
    ("tensor", lambda keeper: keeper.tensor.data.add_(1)),
    ("array", lambda keeper: keeper.array.__setitem__(0, 1)),
    ("generator", lambda keeper: torch.rand(1, generator=keeper.generator)),
    ("python", lambda keeper: keeper.python.random()),
    ("numpy", lambda keeper: keeper.numpy.random()),
    ("counter", lambda keeper: next(keeper.counter)),
    ("names", lambda keeper: keeper.names.add("c")),
    ("stranger.value", lambda keeper: setattr(keeper.stranger, "value", 2.0)),
    ("new", lambda keeper: setattr(keeper, "new", 1)),
    ("_forward_hooks", lambda keeper: keeper.register_forward_hook(lambda *_: None)),
)


@pytest.mark.parametrize(("place", "change"), CHANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_kind_of_attribute_is_seen_and_named(place: str, change: Callable[[Keeper], object]) -> None:
    keeper = Keeper()
    twin = copy.deepcopy(keeper)
    before = KeptState.of(keeper)
    assert before == KeptState.of(twin), "a copy has the same state"
    change(keeper)
    found = differences(before.own, KeptState.of(keeper).own)
    assert found
    assert all(name.startswith(f"Keeper.{place}") for name in found)


def test_weights_and_mode_are_no_state() -> None:
    keeper = Keeper()
    before = KeptState.of(keeper)
    keeper.eval()
    next(keeper.parameters()).data.add_(1)
    assert KeptState.of(keeper) == before


def test_a_class_attribute_is_seen() -> None:
    before = KeptState.of(Keeper())
    Keeper.common.append(1)
    try:
        assert differences(before.shared, KeptState.of(Keeper()).shared) == ["Keeper.common", "Keeper.common[0]"]
    finally:
        Keeper.common.clear()


@pytest.mark.parametrize(
    ("kind", "place"), [(harmful.ClosureMemory, "calls in _remembering"), (harmful.GlobalCounter, "global _GLOBAL")]
)
def test_closures_and_globals_are_seen(kind: type[nn.Module], place: str) -> None:
    model = kind()
    before = KeptState.of(model)
    model(torch.rand(3, *SHAPE))
    after = KeptState.of(model)
    assert before.own == after.own
    assert any(place in found for found in differences(before.shared, after.shared))


@functools.lru_cache
def cached(size: int) -> int:
    """A cache that spans calls."""
    return size


class Cached(Mlp):
    """Looks something up."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        cached(len(images))
        return super().forward(images)


def test_a_cache_of_a_function_is_seen_when_it_grows() -> None:
    model = Cached()
    cached.cache_clear()
    sizes = []
    for rows in (3, 3, 4):
        model(torch.rand(rows, *SHAPE))
        sizes.append(KeptState.of(model).shared)
    assert sizes[0] == sizes[1] != sizes[2]


@pytest.mark.parametrize("kind", PROVEN, ids=lambda kind: kind.__name__)
def test_a_pass_leaves_nothing_behind_in_a_harmless_network(kind: type[nn.Module]) -> None:
    model, rows = kind().train(), torch.rand(4, *SHAPE)
    twin = copy.deepcopy(model)
    model(torch.rand(4, *SHAPE))
    torch.manual_seed(1)
    model(rows)
    torch.manual_seed(1)
    twin(rows)
    assert KeptState.of(model) == KeptState.of(twin)
