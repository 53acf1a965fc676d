"""What a network keeps in Python: found wherever it can be, equal for copies, blind to weights and mode."""

from __future__ import annotations

import copy
import functools
from typing import ClassVar

import pytest
import torch
from torch import nn

from own_modules import harmful
from own_modules.harmless import PROVEN, SHAPE, Mlp
from twinproof.layers.module_state import KeptState, differences


class Keeper(Mlp):
    """Keeps something on its class."""

    common: ClassVar[list[int]] = []


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
