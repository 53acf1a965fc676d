"""Local Lipschitz constants: linear networks against all corners, the published loop step by step, what climbs and what not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import DataError, ModelError, UserError
from twinproof.layers.networks import build_network
from twinproof_papers.example_metrics.lipschitz import LipschitzSettings, local_lipschitz
from twinproof_papers.example_metrics.subject import penultimate


def inside(shape: tuple[int, ...], count: int = 5) -> Tensor:
    """Points that no side of [0, 1] cuts off."""
    return 0.25 + 0.5 * torch.rand((count, *shape), generator=torch.Generator().manual_seed(4))


def linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def corner_maximum(weight: Tensor) -> float:
    """max over sign vectors s of |W s|_1: the constant of a linear map from linf to l1, by trying all of them."""
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=weight.shape[1])), dtype=torch.float64)
    return float((corners @ weight.detach().double().T).abs().sum(dim=1).max())


@pytest.mark.parametrize("seed", range(2))
def test_a_linear_network_reaches_its_constant(seed: int) -> None:
    model = linear(9, 4, seed)
    truth = corner_maximum(model.weight)
    found = local_lipschitz(model, inside((9,)), settings=LipschitzSettings(restarts=20))
    assert float(found.search.max()) <= truth * (1 + 1e-4), "a ratio at a point cannot be above"
    torch.testing.assert_close(found.search, torch.full((5,), truth, dtype=torch.float64), rtol=1e-4, atol=0)
    assert bool((found.loop <= truth * (1 + 1e-3)).all())
    assert bool((found.search >= found.loop * (1 - 2e-4)).all())


def by_hand(model: nn.Module, point: Tensor, start: Tensor, direction: float) -> float:
    """The published loop for one input, written out again."""
    other = start.clone()

    def ratio(x: Tensor) -> Tensor:
        top = (model(point[None]) - model(x[None])).abs().sum()
        ratio: Tensor = top / (point - x + 1e-6).abs().max()
        return ratio

    for _ in range(10):
        slope = torch.func.grad(lambda x: ratio(x))(other)
        other = other + direction * 0.003 * slope.sign()
        other = (point + (other - point).clamp(-0.01, 0.01)).clamp(0, 1).detach()
    return float(ratio(other).detach())


def test_the_published_loop_step_by_step() -> None:
    """In float64, where no slope's sign hangs on rounding; the released code goes down, its papers say up."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs = torch.rand(4, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    start = inputs + 0.001 * torch.from_numpy(np.random.default_rng((0, 0)).standard_normal((4, 6)))
    found = local_lipschitz(model, inputs)
    for row in range(4):
        assert float(found.code[row]) == pytest.approx(by_hand(model, inputs[row], start[row], -1.0), rel=1e-9)
        assert float(found.loop[row]) == pytest.approx(by_hand(model, inputs[row], start[row], 1.0), rel=1e-9)


def test_points_at_the_edge_of_the_range_stay_inside() -> None:
    """At x = 0 only steps up are allowed, at x = 1 only steps down."""

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(5, 3, 0)
            self.low, self.high = math.inf, -math.inf

        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad is False:  # the points that are compared, not those that slopes are taken at
                self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
            out: Tensor = self.inner(x)
            return out

    model = Watching()
    found = local_lipschitz(model, torch.cat([torch.zeros(3, 5), torch.ones(3, 5)]))
    assert 0 <= model.low <= model.high <= 1
    assert bool((found.search > 0).all())


def test_the_batches_change_nothing_and_a_seed_repeats() -> None:
    model, inputs = build_network("mlp", (12,), 3), inside((12,), 7)
    whole, parts = (local_lipschitz(model, inputs, batch_size=size) for size in (7, 2))
    fewer = local_lipschitz(model, inputs[:4])
    for name in ("code", "loop", "search"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-3, atol=0)
        torch.testing.assert_close(getattr(fewer, name), getattr(whole, name)[:4], rtol=1e-3, atol=0)
    other = local_lipschitz(model, inputs, settings=LipschitzSettings(seed=1))
    assert not torch.allclose(other.code, whole.code, rtol=1e-3), "the start is drawn from the seed"


def test_the_penultimate_layer_is_what_the_last_layer_is_given() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 3))
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 8), nn.Tanh()), inner).train()
    features, inputs = penultimate(model), inside((4,))
    assert torch.equal(inner(features(inputs)), model(inputs))
    assert features.training
    expected = local_lipschitz(nn.Sequential(model[1]), inputs)
    assert torch.equal(local_lipschitz(features, inputs).search, expected.search)


@pytest.mark.parametrize(
    "model",
    [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1)), nn.Sequential()],
    ids=["bare", "softmax", "empty"],
)
def test_a_network_without_a_last_linear_layer_is_refused(model: nn.Module) -> None:
    with pytest.raises(ModelError, match="penultimate layer cannot be found"):
        penultimate(model)


class Infinite(nn.Module):
    """Infinite a little away from 1/2."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x == 0.5, x, x * math.inf)


@pytest.mark.parametrize(
    ("model", "inputs", "error", "words"),
    [
        (nn.Linear(2, 2), torch.full((1, 2), 1.5), DataError, "outside their range"),
        (Infinite(), torch.full((1, 2), 0.5), ModelError, "not finite"),
    ],
)
def test_bad_inputs_and_networks_are_refused(model: nn.Module, inputs: Tensor, error: type[UserError], words: str) -> None:
    with pytest.raises(error, match=words):
        local_lipschitz(model, inputs)
