"""Interval bounds against exact fractions, and against networks that run in float32 with sums in any order; planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from interval_oracles import (
    LEVELS,
    escapes,
    exact_failures,
    exact_margins,
    random_network,
    steps_of,
    stored_inputs,
    without_bias,
)
from torch import Tensor, nn

from twinproof.certification import interval, interval_layers
from twinproof.certification.interval import STEPS, UNDECIDED, IntervalNetwork
from twinproof.certification.interval_layers import Box, Sums

NETWORKS, ALL = 400, 2_000
FEW = range(80)


def _sizes(bounds: IntervalNetwork, stored: Tensor, seed: int) -> list[int]:
    """The radii; where there are two inputs, any size for the second."""
    found = bounds.radii(stored, LEVELS, bounds.answers(stored, LEVELS)).tolist()
    found[1:] = [int(np.random.default_rng([seed, 3]).integers(STEPS))] * len(found[1:])
    return [max(0, size) for size in found]


def _fails_exactly(
    seeds: range, planted: Callable[[IntervalNetwork], IntervalNetwork] = lambda bounds: bounds, *, inputs: int = 2
) -> int:
    wrong = 0
    for seed in seeds:
        network, shape = random_network(seed)
        bounds = planted(IntervalNetwork.of(network, shape))
        stored = stored_inputs(seed, shape, inputs)
        wrong += exact_failures(network, bounds, stored, _sizes(bounds, stored, seed))
    return wrong


@pytest.mark.parametrize(
    "seeds", [range(NETWORKS), pytest.param(range(NETWORKS, ALL), marks=pytest.mark.slow)], ids=["some", "all others"]
)
def test_bounds_are_never_inside_exact_ones(seeds: range) -> None:
    """All ends of all layers and all margins, at the radius, in rational arithmetic; planted bugs fail in most of ``FEW``."""
    assert _fails_exactly(seeds, inputs=1) == 0


def test_bounds_at_any_size_are_never_inside_exact_ones() -> None:
    assert _fails_exactly(FEW) == 0


def test_radii_are_nearly_those_of_exact_bounds() -> None:
    certified = longer = 0
    for seed in range(200):
        network, shape = random_network(seed)
        bounds, stored = IntervalNetwork.of(network, shape), stored_inputs(seed, shape, 1)
        answer = int(bounds.answers(stored, LEVELS))
        steps = int(bounds.radii(stored, LEVELS, torch.tensor([answer])))
        if 0 < steps < STEPS:
            certified += 1
            size = Fraction(steps, STEPS) * Fraction(1_001, 1_000) + Fraction(8, STEPS)
            margins = exact_margins(steps_of(network, shape), stored.flatten().tolist(), size, answer)
            longer += min(margins.values()) > 0
    assert certified > 75
    assert longer <= 5


def _escapes(seeds: range, planted: Callable[[IntervalNetwork], IntervalNetwork] = lambda bounds: bounds) -> int:
    wrong = 0
    for seed in seeds:
        network, shape = random_network(seed)
        bounds = planted(IntervalNetwork.of(network, shape))
        stored = stored_inputs(seed, shape, 2)
        steps = bounds.radii(stored, LEVELS, bounds.answers(stored, LEVELS)).tolist()
        wrong += escapes(network, bounds, stored, steps, seed)
    return wrong


def test_float32_stays_inside_whatever_the_order_of_sums() -> None:
    assert _escapes(range(150)) == 0


def _only_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of exact arithmetic: what the network errs is not paid for."""
    monkeypatch.setattr(interval_layers, "float32_share", lambda roundings: 0.0)
    monkeypatch.setattr(interval, "float32_share", lambda roundings: 0.0)
    monkeypatch.setattr(interval_layers, "INPUT_ROUNDING", 2.0**-50)


def test_float64_pays_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _only_float64(monkeypatch)
    assert _fails_exactly(FEW) == 0


def test_planted_rounding_to_nearest_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _only_float64(monkeypatch)
    for module in (interval, interval_layers):
        monkeypatch.setattr(module, "float64_share", lambda terms: 0.0)
        monkeypatch.setattr(module, "underflow", lambda terms, reach, weights=0.0: reach.new_zeros(1))
    assert _fails_exactly(FEW) > 50


def test_planted_signs_in_the_magnitudes_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "magnitudes", property(lambda layer: layer.weight))
    assert _fails_exactly(FEW) > 50


def test_planted_loss_of_the_bias_is_caught() -> None:
    assert _fails_exactly(FEW, without_bias) > 50


def test_a_planted_cut_on_both_sides_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one side ends at 0 or 1, the other does not: the ball may not be made symmetric."""

    def symmetric(stored: Tensor, levels: int, size: Tensor) -> Box:
        centre = stored.double() / levels
        allowed = torch.minimum(torch.minimum(centre, 1 - centre), size.reshape(-1, *(1,) * (stored.ndim - 1)))
        return Box(centre - allowed, centre + allowed)

    monkeypatch.setattr(interval, "ball", symmetric)
    assert _fails_exactly(FEW) > 50
    assert _escapes(FEW) > 0


def test_the_ball_ends_at_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """z = x + 0.1 and 0: right for all x in [0, 1], however large the change; a planted ball without the cut loses that."""
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [0.0]]))
        layer.bias.copy_(torch.tensor([0.1, 0.0]))
    network = nn.Sequential(layer)
    bounds, stored = IntervalNetwork.of(network, (1,)), torch.tensor([[51], [255]])
    assert bounds.radii(stored, LEVELS, torch.tensor([0, 0])).tolist() == [STEPS, STEPS]
    monkeypatch.setattr(
        interval, "ball", lambda stored, levels, size: Box(stored / levels - size[:, None], stored / levels + size[:, None])
    )
    uncut = bounds.radii(stored, LEVELS, torch.tensor([0, 0])) / STEPS
    assert uncut.tolist() == pytest.approx([0.3, 1], abs=1e-3)


def _cancelling(terms: int = 64) -> nn.Sequential:
    """z_0 = 4096 (x_1 - x_2 + x_3 - ...) + 1e-3, z_1 = 0: in float32 the sum errs by more than what is left of it."""
    layer = nn.Linear(terms, 2)
    with torch.no_grad():
        layer.weight[0] = 4096.0 * torch.tensor([1.0, -1.0]).repeat(terms // 2)
        layer.weight[1] = 0
        layer.bias.copy_(torch.tensor([1e-3, 0.0]))
    return nn.Sequential(layer)


def test_cancellation_is_not_certified() -> None:
    bounds = IntervalNetwork.of(_cancelling(), (64,))
    stored = torch.full((1, 64), 77)
    assert bounds.radii(stored, LEVELS, bounds.answers(stored, LEVELS)).tolist() == [UNDECIDED]


def test_a_planted_loss_of_the_networks_rounding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer depends on the order of sums, which bounds without gamma do not see."""
    _only_float64(monkeypatch)
    network = _cancelling()
    bounds, stored = IntervalNetwork.of(network, (64,)), torch.full((1, 64), 77)
    steps = bounds.radii(stored, LEVELS, bounds.answers(stored, LEVELS)).tolist()
    assert steps == [0]
    assert escapes(network, bounds, stored, steps, 0) > 0
    assert _escapes(FEW) > 0
