"""Eval mode for a while, and every module back in its own mode."""

from __future__ import annotations

import pytest
from torch import nn

from twinproof.layers.cross_example import evaluation_mode


def _partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)), nn.Dropout())
    model.train()
    model[1].eval()
    return model


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("make", [_partly_frozen, lambda: nn.Linear(1, 1).train(), lambda: nn.Linear(1, 1).eval()])
def test_every_module_gets_its_own_mode_back(make: object) -> None:
    assert callable(make)
    model: nn.Module = make()
    before = _modes(model)
    with evaluation_mode(model):
        assert not any(_modes(model))
    assert _modes(model) == before


def test_also_after_an_error() -> None:
    model = _partly_frozen()
    before = _modes(model)
    with pytest.raises(RuntimeError, match="inside"), evaluation_mode(model):
        raise RuntimeError("inside")
    assert _modes(model) == before


def test_nesting_is_harmless() -> None:
    model = _partly_frozen()
    before = _modes(model)
    with evaluation_mode(model):
        with evaluation_mode(model):
            pass
        assert not any(_modes(model))
    assert _modes(model) == before


def test_planted_train_instead_of_restoring_is_caught() -> None:
    model = _partly_frozen()
    before = _modes(model)
    model.eval()
    model.train()
    assert _modes(model) != before
