"""Gradients of learned scales and of what stands around the noise, on both paths, against one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from per_example_oracle import CLASSES, mean_loss, records, worst_error
from torch import Tensor, nn

from twinproof.layers.noise import Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise, split_at_noise
from twinproof.training.passes import Repeats
from twinproof.training.per_example import FastPath, Instantiated, PerExampleGradient, PerExamplePath, VmapPath, choose_path
from twinproof.training.per_example import fast as registry
from twinproof.training.per_example.fast import Call
from twinproof.training.per_example.layers import learned_spread

DEVIATION, SEED = 0.7, 11
MakeSpread = Callable[[tuple[int, ...]], Spread]


@dataclass(frozen=True)
class Case:
    """A network with learned noise: its first layer, the shape of its input, where the noise is, and its law."""

    first: type[nn.Module]
    shape: tuple[int, ...]
    place: Place
    law: Law = Law.GAUSSIAN

    def model(self, dtype: torch.dtype, spread: MakeSpread = LearnedSpread) -> nn.Sequential:
        torch.manual_seed(0)
        first = nn.Conv2d(2, 3, 3, padding=1) if self.first is nn.Conv2d else nn.Linear(self.shape[0], 6)
        width = first(torch.zeros(1, *self.shape)).numel()
        plain = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(width, CLASSES))
        noisy = add_noise(plain, self.shape, self.place, lambda s: NoiseLayer(s, self.law, DEVIATION, spread(s)))
        with torch.no_grad():
            for parameter in noisy.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
        return noisy.to(dtype)


CASES: dict[str, Case] = {
    "linear": Case(nn.Linear, (5,), Place.FIRST_LAYER),
    "linear, laplace": Case(nn.Linear, (5,), Place.FIRST_LAYER, Law.LAPLACE),
    "linear, at the input": Case(nn.Linear, (5,), Place.INPUT),
    "convolution": Case(nn.Conv2d, (2, 4, 5), Place.FIRST_LAYER),
    "convolution, at the input": Case(nn.Conv2d, (2, 4, 5), Place.INPUT, Law.LAPLACE),
}


def _drawn(case: Case, shape: tuple[int, ...]) -> Tensor:
    """What the layer draws after the seed; only this is taken from its definition (a uniform, inverted, for Laplace)."""
    torch.manual_seed(SEED)
    if case.law is Law.GAUSSIAN:
        return torch.randn(shape).double()
    uniform = (torch.rand(shape).double() - 0.5) + 2.0**-25
    return -uniform.sign() * torch.log1p(-2 * uniform.abs())


def _one_at_a_time(case: Case, model: nn.Sequential, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Plain autograd on one record with its rows of the noise; the scales are written out from their definition."""
    split = split_at_noise(model)
    assert split is not None
    number, copies = inputs.shape[:2]
    noise = _drawn(case, (number * copies, *split.noise.shape)).view(number, copies, *split.noise.shape)
    named = dict(model.named_parameters())
    log_shares = named["noise.spread.log_shares"]
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
    for record, label, own in zip(inputs, labels, noise, strict=True):
        shares = log_shares.exp() / log_shares.exp().sum()
        scales = (0.9 * len(shares) * shares + 0.1).sqrt()
        hidden = record.contiguous() if split.before is None else split.before(record.contiguous())
        loss = mean_loss(split.after(hidden + DEVIATION * own * scales.view(split.noise.shape)), label)
        for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            rows[name].append(gradient)
    return {name: torch.stack(row) for name, row in rows.items()}


def _error(case: Case, path: type[FastPath] | type[VmapPath], number: int, copies: int) -> float:
    model = case.model(torch.float64)
    inputs, labels = records(case.shape, number, copies, torch.float64)
    wanted = _one_at_a_time(case, model, inputs, labels)
    subject: PerExamplePath = path(model, mean_loss)
    torch.manual_seed(SEED)
    found = subject.gradients(inputs, labels)
    assert list(found.by_name) == list(wanted)
    return worst_error(found, wanted)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("path", [FastPath, VmapPath])
@pytest.mark.parametrize("name", CASES)
def test_equals_one_record_at_a_time_with_the_same_noise(name: str, path: type[FastPath] | type[VmapPath], copies: int) -> None:
    # A Laplace number is computed in float32, and the oracle's in float64.
    tolerance = 1e-10 if CASES[name].law is Law.GAUSSIAN else 1e-4
    for number in (1, 4):
        assert _error(CASES[name], path, number, copies) < tolerance


def _shares_that_need_not_sum_to_one(layer: LearnedSpread, calls: Sequence[Call], number: int) -> dict[str, PerExampleGradient]:
    """Planted bug: one share grows, and the others do not give way."""
    (call,) = calls
    at_scales = (call.inputs * call.errors).reshape(number, -1, layer.coordinates).sum(1)
    growth = 0.9 * layer.coordinates * torch.softmax(layer.log_shares.detach(), 0)
    return {"log_shares": Instantiated(at_scales * growth / (2 * (growth + 0.1).sqrt()))}


def _first_copy_only(layer: LearnedSpread, calls: Sequence[Call], number: int) -> dict[str, PerExampleGradient]:
    """Planted bug: the other copies are forgotten."""
    copies = calls[0].inputs.shape[0] // number
    return learned_spread(layer, [Call(call.inputs[::copies], call.errors[::copies]) for call in calls], number)


@pytest.mark.parametrize("wrong", [_shares_that_need_not_sum_to_one, _first_copy_only])
def test_planted_wrong_rules_are_caught_here_and_in_the_trial(
    wrong: registry.LayerHandler[LearnedSpread], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["linear"]
    handlers: dict[type[nn.Module], registry.Handler] = {**registry._HANDLERS, LearnedSpread: wrong}
    monkeypatch.setattr(registry, "_HANDLERS", handlers)
    assert _error(case, FastPath, 4, 3) > 1e-6
    chosen = choose_path(case.model(torch.float32), mean_loss, case.shape, CLASSES, copies=3)
    assert isinstance(chosen, VmapPath)
    assert "log_shares" in chosen.reason


def _random(shape: tuple[int, ...]) -> RandomSpread:
    return RandomSpread(shape, 0.5)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_fast_path_passes_its_trial_with_noise(name: str, copies: int) -> None:
    case = CASES[name]
    spreads: tuple[MakeSpread, ...] = (LearnedSpread, UniformSpread, _random)
    for spread in spreads:
        model = case.model(torch.float32, spread)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        state = torch.get_rng_state()
        chosen = choose_path(model, mean_loss, case.shape, CLASSES, copies=copies)
        assert isinstance(chosen, FastPath)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_copies_of_a_record_meet_noise_of_their_own() -> None:
    case = CASES["linear"]
    model = case.model(torch.float64)
    inputs, labels = records(case.shape, 4, 1, torch.float64)
    repeated = Repeats(3)(inputs[:, 0], torch.Generator())
    wanted = _one_at_a_time(case, model, repeated, labels)
    torch.manual_seed(SEED)
    found = FastPath(model, mean_loss).gradients(repeated, labels)
    assert worst_error(found, wanted) < 1e-10
    torch.manual_seed(SEED)
    alone = FastPath(model, mean_loss).gradients(inputs, labels)
    assert worst_error(alone, wanted) > 1e-2


def test_frozen_scales_have_no_gradient() -> None:
    model = CASES["linear"].model(torch.float64)
    model.get_parameter("noise.spread.log_shares").requires_grad_(False)
    inputs, labels = records((5,), 2, 2, torch.float64)
    assert "noise.spread.log_shares" not in FastPath(model, mean_loss).gradients(inputs, labels).by_name
