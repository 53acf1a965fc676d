"""Weights that a network uses a second time by their absolute values: gradients of one record, norms, and planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from per_example_oracle import CLASSES, mean_loss, one_at_a_time, records, same_bits_beside, worst_error
from torch import Tensor, nn

from twinproof.layers.interval import DifferenceMagnitude, Magnitude
from twinproof.layers.noise_placement import FirstLayer
from twinproof.training.per_example import Instantiated, LinearFactors, VmapPath, choose_path, fast, magnitude
from twinproof.training.per_example import layers as rules
from twinproof.training.per_example.fast import Call, FastPath
from twinproof.training.per_example.magnitude import SignedFactors, difference_gradient

COPIES = 2
LAYERS: list[tuple[Callable[[], FirstLayer], tuple[int, ...]]] = [
    (lambda: nn.Linear(60, 40), (60,)),
    (lambda: nn.Linear(4, 3), (5, 4)),
    (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 9)),
    (lambda: nn.Conv2d(1, 4, 5, stride=2, padding=2), (1, 8, 8)),
    (lambda: nn.Conv2d(4, 6, 3, stride=3, padding=2, groups=2), (4, 7, 8)),
    (lambda: nn.Conv2d(2, 3, 2, padding="same", dilation=2, bias=False), (2, 5, 6)),
]


class Spread(nn.Module):
    """A layer called ``calls`` times, its magnitude, and a last layer whose differences are used too."""

    def __init__(self, layer: FirstLayer, shape: tuple[int, ...], calls: int = 2) -> None:
        super().__init__()
        self.layer, self.magnitude, self.calls = layer, Magnitude(layer), calls
        self.last = nn.Linear(layer(torch.zeros(1, *shape)).numel(), CLASSES)
        self.differences = DifferenceMagnitude(self.last)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.magnitude(rows.abs() + 0.1))
        for number in range(self.calls):
            hidden = hidden + torch.tanh(self.layer(rows * (number + 1)))
        hidden = hidden.flatten(1)
        differences: Tensor = self.differences(hidden.abs())
        return self.last(hidden) + (differences * torch.arange(1.0, CLASSES + 1).to(rows.dtype)).sum(2)  # type: ignore[no-any-return]


def _model(place: int, calls: int = 2) -> tuple[Spread, tuple[int, ...]]:
    make, shape = LAYERS[place]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Spread(make(), shape, calls), shape


@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("place", range(len(LAYERS)))
def test_gradients_of_each_record_are_autograds(place: int, calls: int) -> None:
    """One record at a time through plain autograd, which knows nothing of calls."""
    model, shape = _model(place, calls)
    with torch.no_grad():
        model.layer.weight[0, 0] = 0  # where the absolute value has a corner autograd's slope is 0, and the rule's too
    inputs, labels = records(shape, 3, COPIES, torch.float64)
    for path in (FastPath(model.double(), mean_loss), VmapPath(model.double(), mean_loss)):
        assert worst_error(path.gradients(inputs, labels), one_at_a_time(model, inputs, labels)) < 1e-12


@pytest.mark.parametrize("place", range(len(LAYERS)))
def test_the_fast_path_is_proven_on_its_trial(place: int) -> None:
    model, shape = _model(place)
    assert isinstance(choose_path(model, mean_loss, shape, CLASSES, copies=COPIES), FastPath)


@pytest.mark.parametrize("place", [0, 3])
def test_other_records_change_no_bit(place: int) -> None:
    model, shape = _model(place)
    inputs, labels = records(shape, 5, COPIES, torch.float32)
    others = records(shape, 5, COPIES, torch.float32, seed=2)
    others[0][0] = float("nan")
    assert same_bits_beside(FastPath(model, mean_loss), inputs, labels, *others, row=3)


def _no_signs(layer: nn.Module) -> Tensor:
    return torch.ones_like(layer.weight)  # type: ignore[arg-type]


PLANTED: dict[str, tuple[object, str, object]] = {
    "a use that is not found": (fast, "second_uses_of", lambda model, layers: []),
    "a magnitude taken for the layer": (fast, "_call", lambda inputs, errors, by: Call(inputs, errors)),
    "no signs": (rules, "signs_of", _no_signs),
    "a difference's second row forgotten": (
        rules,
        "difference_gradient",
        lambda layer, calls, records: difference_gradient(layer, [_upper(call) for call in calls], records),
    ),
}


def _upper(call: Call) -> Call:
    return Call(call.inputs, call.errors / 2, magnitude=call.magnitude)


@pytest.mark.parametrize("planted", list(PLANTED))
@pytest.mark.parametrize("place", [0, 3])
def test_planted_bugs_are_seen_by_the_trial(place: int, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, bug = PLANTED[planted]
    monkeypatch.setattr(where, name, bug)
    model, shape = _model(place)
    assert isinstance(choose_path(model, mean_loss, shape, CLASSES, copies=COPIES), VmapPath)


def test_a_layer_that_is_used_by_its_magnitude_alone_has_no_slope_in_its_bias() -> None:
    layer = nn.Linear(3, 2)
    call = Call(torch.rand(4, 3), torch.rand(4, 2), magnitude=Magnitude(layer))
    found = rules.linear(layer, [call], 4)
    assert not found["bias"].instantiate().any()
    wanted = torch.einsum("no,ni->noi", call.errors, call.inputs) * layer.weight.sign()
    assert torch.equal(found["weight"].instantiate(), wanted.detach())


# --- factors -------------------------------------------------------------------------------------------------------------


def _factors(seed: int, *, calls: int = 2, outputs: int = 9, inputs: int = 7, cancel: bool = False) -> SignedFactors:
    """Random ones; with ``cancel`` the two parts are opposite but for single bits."""
    draw = torch.Generator().manual_seed(seed)

    def values(count: int, size: int) -> Tensor:
        scale: float = 10.0 ** int(torch.randint(-4, 4, (), generator=draw))
        return torch.randn(4, count, size, generator=draw) * scale

    signs = torch.randint(-1, 2, (outputs, inputs), generator=draw).float()
    plain = LinearFactors(values(calls, inputs), values(calls, outputs))
    if not cancel:
        return SignedFactors(plain, LinearFactors(values(1, inputs), values(1, outputs)), signs)
    one = LinearFactors(plain.inputs[:, :1], plain.errors[:, :1])
    return SignedFactors(one, LinearFactors(one.inputs * (1 + 2e-7), -one.errors), torch.ones(outputs, inputs))


def _exact_square(factors: SignedFactors, record: int) -> Fraction:
    """In fractions, without a rounding: the squared norm of one record's gradient."""

    def exact(values: Tensor) -> list[list[Fraction]]:
        return [[Fraction(float(value)) for value in row] for row in values[record]]

    parts = [(exact(part.errors), exact(part.inputs)) for part in (factors.plain, factors.spread)]
    total = Fraction(0)
    for output, row in enumerate(factors.signs.tolist()):
        for place, sign in enumerate(row):
            sums = [sum((e[output] * x[place] for e, x in zip(*part, strict=True)), Fraction(0)) for part in parts]
            total += (sums[0] + int(sign) * sums[1]) ** 2
    return total


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_norm_is_never_below_the_exact_one_and_near_it(seed: int, cancel: bool) -> None:
    factors = _factors(seed, cancel=cancel, calls=1 + seed % 3)
    found = factors.squared_norms().tolist()
    dense = SignedFactors(factors.plain, factors.spread, torch.ones_like(factors.signs)) if cancel else factors
    whole = (magnitude._length(dense.plain) + magnitude._length(dense.spread)).square().tolist()
    for record, square in enumerate(found):
        exact = _exact_square(factors, record)
        zeros = _lost_to_zeros(factors, record)
        assert Fraction(square) >= exact
        assert square <= float(exact + zeros) + 1e-12 * whole[record]


def _lost_to_zeros(factors: SignedFactors, record: int) -> Fraction:
    """What weights that are exactly 0 take off the second part: the norm counts it, and may."""
    alone = LinearFactors(factors.plain.inputs * 0, factors.plain.errors * 0)
    whole = SignedFactors(alone, factors.spread, torch.ones_like(factors.signs))
    return _exact_square(whole, record) - _exact_square(SignedFactors(alone, factors.spread, factors.signs), record)


def test_planted_norm_without_its_cross_term_is_below() -> None:
    factors = _factors(1)
    both = factors.plain.squared_norms() + factors.spread.squared_norms()
    exact = [_exact_square(factors, record) for record in range(4)]
    negative = any(Fraction(square) < wanted for square, wanted in zip(both.tolist(), exact, strict=True))
    flipped = SignedFactors(factors.plain, factors.spread, -factors.signs)
    assert negative or any(Fraction(square) < _exact_square(flipped, record) for record, square in enumerate(both.tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_factors_and_matrices_give_the_same(seed: int) -> None:
    factors = _factors(seed)
    formed = Instantiated(factors.instantiate().double())
    weights = torch.tensor([0.5, 0.0, 1.0, 0.25], dtype=torch.float64)
    wanted = formed.weighted_sum(weights)
    assert torch.allclose(factors.weighted_sum(weights), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    broken = SignedFactors(factors.plain, LinearFactors(_with_nan(factors.spread.inputs), factors.spread.errors), factors.signs)
    assert torch.equal(broken.weighted_sum(weights), factors.weighted_sum(weights)), "a record of weight 0 adds nothing"
    assert not bool(torch.isfinite(broken.squared_norms()[1]))
    assert bool(torch.isfinite(broken.squared_norms()[[0, 2, 3]]).all())


def _with_nan(values: Tensor) -> Tensor:
    changed = values.clone()
    changed[1] = float("nan")
    return changed
