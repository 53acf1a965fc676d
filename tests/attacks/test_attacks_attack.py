"""The four methods as settings, and settings that make no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from twinproof.attacks.search import METHODS, Attack, Keep, attack_named, fgsm, ifgsm, mim, pgd
from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError


@pytest.mark.parametrize(
    ("attack", "steps", "length", "momentum", "random_start"),
    [
        (fgsm(), 1, 0.3, None, False),
        (ifgsm(10), 10, 0.03, None, False),
        (ifgsm(10, step_size=0.01), 10, 0.01, None, False),
        (mim(5), 5, 0.06, 1.0, False),
        (mim(5, decay=0.9), 5, 0.06, 0.9, False),
        (pgd(50, restarts=3), 50, 0.015, None, True),
    ],
    ids=str,
)
def test_presets(attack: Attack, steps: int, length: float, momentum: float | None, random_start: bool) -> None:
    assert (attack.steps, attack.momentum, attack.random_start) == (steps, momentum, random_start)
    assert attack.step_length(Threat("linf", 0.3)) == pytest.approx(length)


def test_names_give_the_presets() -> None:
    assert attack_named("pgd", steps=7, restarts=2) == pgd(7, restarts=2)
    assert set(METHODS) == {"fgsm", "ifgsm", "mim", "pgd"}
    assert "steps=7" in repr(attack_named("ifgsm", steps=7))


@pytest.mark.parametrize(("name", "options", "match"), [("cw", {}, "unknown attack"), ("fgsm", {"steps": 3}, "no such option")])
def test_unknown_methods_and_options(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        attack_named(name, **options)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps cannot be used"),
        ({"restarts": 0}, "restarts cannot be used"),
        ({"step_size": 0.0}, "cannot be used"),
        ({"relative_step": math.nan}, "cannot be used"),
        ({"momentum": 1.5}, "momentum cannot"),
        ({"spread": -0.1}, "spread cannot"),
        ({"keep": "first"}, "keep cannot"),
        ({"restarts": 2}, "restarts would be wasted"),
        ({"restarts": 2, "random_start": True, "keep": Keep.LAST}, "restarts would be wasted"),
    ],
)
def test_bad_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Attack(**settings)


def test_a_row_without_gradient_stays_whatever_its_momentum() -> None:
    points, gathered = torch.full((2, 3), 0.5), torch.ones(2, 3)
    gradient = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
    moved = mim(10).propose(points, gradient, gathered, Threat("linf", 0.1))
    assert torch.equal(moved[1], points[1])
    assert not torch.equal(moved[0], points[0])
