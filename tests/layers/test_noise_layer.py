"""Noise of the right size, fresh for every row and call, in both modes, and silent only where it is told to be."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.noise import (
    FixedSpread,
    Law,
    LearnedSpread,
    NoiseLayer,
    RandomSpread,
    Spread,
    UniformSpread,
    laplace_from_uniform,
    silenced,
)

ROWS, SIGMA, SCALES = 2_000_000, 0.3, (0.5, 1.5)
# Over two million draws a sample deviation varies by 0.05 % (Gaussian) or 0.08 % (Laplace): 0.5 % is six of them.
TOLERANCE = 0.005
STANDARD = {Law.GAUSSIAN: 1.0, Law.LAPLACE: math.sqrt(2)}


def _two_learned() -> LearnedSpread:
    spread = LearnedSpread((2,))
    with torch.no_grad():
        spread.log_shares.copy_(torch.tensor([0.0, 1.0]))
    return spread


def _noise(layer: NoiseLayer) -> Tensor:
    torch.manual_seed(1)
    with torch.no_grad():
        made: Tensor = layer(torch.full((ROWS, *layer.shape), 0.25)) - 0.25
    return made


def _deviations_are(layer: NoiseLayer, wanted: Tensor) -> bool:
    found = _noise(layer).double().std(dim=0)
    return bool(((found / wanted - 1).abs() < TOLERANCE).all())


SPREADS: dict[str, Spread] = {
    "uniform": UniformSpread((2,)),
    "fixed": FixedSpread((2,), SCALES),
    "learned": _two_learned(),
    "random": RandomSpread((2,), 0.5),
}


def _wanted(spread: Spread, law: Law) -> Tensor:
    """Deviations by the definitions; the mean of K r is 1 in every coordinate where r is drawn."""
    scales = torch.ones(2, dtype=torch.float64)
    if isinstance(spread, FixedSpread):
        scales = torch.tensor(SCALES, dtype=torch.float64)
    if isinstance(spread, LearnedSpread):
        shares = torch.tensor([1, math.e], dtype=torch.float64) / (1 + math.e)
        scales = (0.9 * 2 * shares + 0.1).sqrt()
    return SIGMA * STANDARD[law] * scales


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", SPREADS)
def test_every_coordinate_has_its_deviation(name: str, law: Law) -> None:
    layer = NoiseLayer((2,), law, SIGMA, SPREADS[name])
    assert _deviations_are(layer, _wanted(SPREADS[name], law))
    assert (_noise(layer).mean(0).abs() < 6 * 2 * SIGMA / ROWS**0.5).all()


@pytest.mark.parametrize("factor", [0.99, 1.01])
@pytest.mark.parametrize("law", list(Law))
def test_planted_errors_of_one_per_cent_are_caught(law: Law, factor: float) -> None:
    spread = UniformSpread((2,))
    assert not _deviations_are(NoiseLayer((2,), law, SIGMA * factor, spread), _wanted(spread, law))
    one_unit = FixedSpread((2,), (SCALES[0], SCALES[1] * factor))
    assert not _deviations_are(NoiseLayer((2,), law, SIGMA, one_unit), _wanted(SPREADS["fixed"], law))


def _follows(law: Law, noise: Tensor) -> bool:
    """Whether the tail beyond 1.5 and 4 standard units has the law's mass, to five deviations of the count."""
    for limit in (1.5, 4.0):
        mass = math.exp(-limit) if law is Law.LAPLACE else math.erfc(limit / math.sqrt(2))
        found = float((noise.abs() > limit).double().mean())
        if abs(found - mass) > 5 * math.sqrt(mass / noise.numel()):
            return False
    return True


def test_each_law_has_its_tails() -> None:
    standard = {law: _noise(NoiseLayer((2,), law, 1.0, UniformSpread((2,)))) for law in Law}
    assert all(_follows(law, noise) for law, noise in standard.items())
    of_equal_variance = standard[Law.GAUSSIAN] * math.sqrt(2)
    assert not _follows(Law.LAPLACE, of_equal_variance), "a normal number of the right variance is no Laplace number"


class SharedByRows(NoiseLayer):
    """Planted bug: one draw for the whole batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        drawn: Tensor = self.deviation * self.spread(torch.randn(1, *self.shape))
        return inputs + drawn


class SharedByCalls(NoiseLayer):
    """Planted bug: the noise of the first call is kept, as Secure-SGD's published code does."""

    kept: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.deviation * self.spread(torch.randn(inputs.shape))
        return inputs + self.kept


class EvalIsSilent(NoiseLayer):
    """Planted bug: behaves like dropout."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) if self.training else inputs


def _is_fresh(layer: NoiseLayer) -> bool:
    """In both modes: no number of a coordinate occurs in two rows or calls, beyond the chance of float32 numbers to meet."""
    torch.manual_seed(4)
    with torch.no_grad():
        calls = [layer.train(mode)(torch.zeros(400, *layer.shape)) for mode in (True, True, False, False)]
    values = torch.cat(calls).flatten(1)
    distinct = [len(torch.unique(column)) for column in values.T]
    return min(distinct) > 0.99 * len(values)


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", SPREADS)
def test_noise_is_fresh_for_every_row_and_call_in_both_modes(name: str, law: Law) -> None:
    assert _is_fresh(NoiseLayer((2,), law, SIGMA, SPREADS[name]))


@pytest.mark.parametrize("kind", [SharedByRows, SharedByCalls, EvalIsSilent])
def test_planted_draws_that_are_shared_or_missing_are_caught(kind: type[NoiseLayer]) -> None:
    assert not _is_fresh(kind((2,), Law.GAUSSIAN, SIGMA, UniformSpread((2,))))


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("spread", [UniformSpread((2, 3, 4)), RandomSpread((2, 3, 4), 0.5)])
def test_noise_does_not_depend_on_layout_or_dtype(law: Law, spread: Spread) -> None:
    layer = NoiseLayer((2, 3, 4), law, SIGMA, spread)
    plain = torch.zeros(5, 2, 3, 4)
    made = []
    for inputs in (plain, plain.to(memory_format=torch.channels_last), plain.double()):
        torch.manual_seed(1)
        made.append(layer(inputs))
    assert torch.equal(made[0], made[1])
    assert made[2].dtype == torch.float64
    torch.testing.assert_close(made[2], made[0].double(), rtol=1e-5, atol=1e-7)


def test_silenced_is_exact_nests_and_ends() -> None:
    layer, other = (NoiseLayer((2,), Law.GAUSSIAN, SIGMA, UniformSpread((2,))) for _ in range(2))
    model, inputs = nn.Sequential(nn.Identity(), layer), torch.rand(3, 2)
    with silenced(model):
        with silenced(layer):
            assert model(inputs) is inputs
        assert model(inputs) is inputs
        assert not torch.equal(other(inputs), inputs), "another network's noise goes on"
        twin = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="ended"), silenced(model):
        raise RuntimeError("ended")
    assert not torch.equal(model(inputs), inputs)
    assert not torch.equal(twin(inputs), inputs), "a copy made in the block is not silent for ever"


def test_the_deviation_changes_in_place_and_is_saved() -> None:
    layer = NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((2,)))
    memory = layer.deviation.data_ptr()
    assert set(layer.state_dict()) == {"deviation"}
    assert layer.deviation.dtype == torch.float64
    for value in (0.1, 0.7, torch.tensor(0.9, dtype=torch.float64)):
        layer.set_deviation(value)
        assert float(layer.deviation) == float(value), "not rounded to float32"
    assert layer.deviation.data_ptr() == memory, "a recording reads this memory"


@pytest.mark.parametrize("name", SPREADS)
def test_forward_changes_no_buffer(name: str) -> None:
    layer = NoiseLayer((2,), Law.LAPLACE, SIGMA, SPREADS[name])
    before = [buffer._version for buffer in layer.buffers()]
    layer(torch.zeros(3, 2))
    assert [buffer._version for buffer in layer.buffers()] == before


def test_refuses_what_does_not_fit() -> None:
    layer = NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((2,)))
    for deviation in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="deviation cannot be used"):
            NoiseLayer((2,), Law.GAUSSIAN, deviation, UniformSpread((2,)))
        with pytest.raises(ConfigError, match="deviation cannot be used"):
            layer.set_deviation(deviation)
    assert float(layer.deviation) == 0.1
    with pytest.raises(ConfigError, match="spread does not fit"):
        NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((3,)))
    with pytest.raises(ModelError, match="noise layer does not fit"):
        layer(torch.zeros(3, 1))  # broadcasting would otherwise spread one number over two coordinates


SHAPE = (3, 5, 7)
COORDINATES = math.prod(SHAPE)


def _learned(floor: float = 0.1, dtype: torch.dtype = torch.float32) -> LearnedSpread:
    spread = LearnedSpread(SHAPE, floor)
    with torch.no_grad():
        spread.log_shares.copy_(2 * torch.randn(COORDINATES, generator=torch.Generator().manual_seed(1)))
    return spread.to(dtype)


def _fixed() -> FixedSpread:
    return FixedSpread(SHAPE, np.random.default_rng(1).uniform(0.1, 3, COORDINATES))


def _multiplied_by(spread: Spread, rows: int = 2) -> Tensor:
    """The scales of a forward pass: noise of ones shows them."""
    dtype = next(spread.parameters(), torch.zeros(())).dtype
    with torch.no_grad():
        made: Tensor = spread(torch.ones(rows, *SHAPE, dtype=dtype))
    return made.flatten(1)


FIXED: dict[str, Spread] = {
    "uniform": UniformSpread(SHAPE),
    "fixed": _fixed(),
    "learned": _learned(),
    "learned, float64": _learned(dtype=torch.float64),
}


def _least_is_exact(spread: Spread, least: NDArray[np.float64]) -> bool:
    return all(np.array_equal(row.double().numpy(), least) for row in _multiplied_by(spread))


@pytest.mark.parametrize("name", FIXED)
def test_least_scales_are_the_numbers_of_forward_to_the_bit(name: str) -> None:
    spread = FIXED[name]
    least = spread.least_scales()
    assert (least.dtype, least.shape, spread.random) == (np.dtype(np.float64), (COORDINATES,), False)
    assert _least_is_exact(spread, least)


def test_planted_scales_of_another_precision_are_caught() -> None:
    spread = _learned()
    shares = torch.softmax(spread.log_shares.detach().double(), 0)
    in_float64 = (0.9 * COORDINATES * shares + 0.1).sqrt().numpy()
    np.testing.assert_allclose(in_float64, spread.least_scales(), rtol=1e-7)
    assert not _least_is_exact(spread, in_float64)


@pytest.mark.parametrize("floor", [0.01, 0.5, 0.99])
def test_learned_shares_are_a_distribution_above_the_floor(floor: float) -> None:
    shares = _learned(floor).least_scales() ** 2 / COORDINATES
    assert shares.sum() == pytest.approx(1, rel=1e-6)
    assert shares.min() >= floor / COORDINATES * (1 - 1e-6)
    assert LearnedSpread(SHAPE, floor).least_scales() == pytest.approx(1, rel=1e-7), "equal noise at the start"


def _shows_a_scale_below(scales: Tensor, least: float) -> bool:
    return bool((scales.double() < least).any())


@pytest.mark.parametrize("width", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("shape", [(1,), (2,), (40,)])
def test_no_random_scale_is_below_the_least(shape: tuple[int, ...], width: float) -> None:
    torch.manual_seed(2)
    spread = RandomSpread(shape, width)
    scales = spread(torch.ones(100_000, *shape))
    (least,) = set(spread.least_scales().tolist())
    assert spread.random
    assert not _shows_a_scale_below(scales, least)
    torch.testing.assert_close((scales**2).mean(1), torch.ones(len(scales)), rtol=1e-4, atol=0)
    if shape == (2,) and width == 0.3:  # the worst case of two coordinates is nearly drawn: the bound is not loose
        assert float(scales.min()) < least * 1.01
        assert _shows_a_scale_below(scales, least * 1.01), "a planted bound that is too high by one per cent is caught"


def test_the_worst_draw_of_all_is_not_below_the_least_where_plain_rounding_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_is_below = 0
    for coordinates in (2, 3, 7, 1000):
        worst = torch.full((1, coordinates), 1 - 2.0**-24)
        worst[0, 0] = 0
        monkeypatch.setattr(torch, "rand", lambda *_, worst=worst, **__: worst)
        for width in (0.1, 0.3, 0.5, 0.7, 0.9):
            spread = RandomSpread((coordinates,), width)
            least = float(spread.least_scales()[0])
            mean = ((1 - width) + (coordinates - 1) * (1 + width)) / coordinates
            assert least == pytest.approx(math.sqrt((1 - width) / mean), rel=1e-7)
            assert not _shows_a_scale_below(spread(torch.ones(1, coordinates)), least)
            weights = worst * (2 * width) + (1 - width)
            plain_is_below += _shows_a_scale_below((weights / weights.mean()).sqrt(), least)
    assert plain_is_below, "without the lift rounding would break the bound: the test can see it"


@pytest.mark.parametrize(
    ("spread", "saved"),
    [
        (UniformSpread(SHAPE), set()),
        (_fixed(), {"scales"}),
        (_learned(), {"log_shares"}),
        (RandomSpread(SHAPE, 0.1), set()),
    ],
)
def test_state_is_what_a_run_must_save(spread: Spread, saved: set[str]) -> None:
    assert set(spread.state_dict()) == saved
    assert spread.coordinates == COORDINATES


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (
            lambda scale: FixedSpread((2,), [1.0, scale]),
            (0.0, -1.0, math.nan, math.inf, 1e-60),
            r"(smallest|largest)_scale cannot be used",
        ),
        (lambda scale: FixedSpread((3,), [1.0, scale]), (1.0,), "scales do not fit"),
        (lambda floor: LearnedSpread((2,), floor), (0.0, 1.0, -0.1, math.nan), "floor"),
        (lambda width: RandomSpread((2,), width), (-0.1, 1.0, math.nan), "width"),
        (lambda size: UniformSpread((2, size)), (0,), "shape of the noise layer"),
    ],
)
def test_refuses_spreads_without_noise(make: Callable[[Any], Spread], values: tuple[float, ...], message: str) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=message):
            make(value)


# The ends of [0, 1) on a CPU (steps of 2**-24) and on a GPU (steps of 2**-32 below 2**-8), and the middle.
EDGES = torch.tensor([0.0, 2.0**-33, 2.0**-25, 2.0**-24, 0.5 - 2.0**-25, 0.5, 1 - 2.0**-23, 1 - 2.0**-24])


def test_no_uniform_gives_infinity() -> None:
    values = laplace_from_uniform(EDGES)
    assert float(values.abs().max()) == torch.tensor(24 * math.log(2)).item()
    assert (values[1:] >= values[:-1]).all(), "inversion is monotone"
    centred = EDGES - 0.5  # the planted inversion without the half step
    assert not bool(torch.isfinite(-torch.sign(centred) * torch.log1p(-2 * centred.abs())).all())


def test_quantiles_are_laplaces() -> None:
    uniform = torch.linspace(0.001, 0.999, 999)
    exact = [math.log(2 * u) if u < 0.5 else -math.log(2 - 2 * u) for u in uniform.tolist()]
    torch.testing.assert_close(laplace_from_uniform(uniform), torch.tensor(exact), rtol=1e-3, atol=1e-6)
