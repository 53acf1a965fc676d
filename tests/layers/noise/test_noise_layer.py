"""Noise of the right size, fresh for every row and call, in both modes, and silent only where it is told to be."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, NoiseLayer, RandomSpread, Spread, UniformSpread, silenced

ROWS, SIGMA, SCALES = 2_000_000, 0.3, (0.5, 1.5)
# Over two million draws a sample deviation varies by 0.05 % (Gaussian) or 0.08 % (Laplace): 0.5 % is six of them.
TOLERANCE = 0.005
STANDARD = {Law.GAUSSIAN: 1.0, Law.LAPLACE: math.sqrt(2)}


def _learned() -> LearnedSpread:
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
    "learned": _learned(),
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
    assert not torch.equal(model(inputs), inputs)
    assert not torch.equal(twin(inputs), inputs), "a copy made in the block is not silent for ever"


def test_silenced_ends_after_an_error() -> None:
    layer, inputs = NoiseLayer((2,), Law.GAUSSIAN, SIGMA, UniformSpread((2,))), torch.rand(3, 2)
    with pytest.raises(RuntimeError, match="no"), silenced(layer):
        raise RuntimeError("no")
    assert not torch.equal(layer(inputs), inputs)


def test_the_deviation_changes_in_place_and_is_saved() -> None:
    layer = NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((2,)))
    memory = layer.deviation.data_ptr()
    assert set(layer.state_dict()) == {"deviation"}
    assert layer.deviation.dtype == torch.float64
    assert float(layer.deviation) == 0.1, "not rounded to float32"
    layer.set_deviation(0.7)
    assert float(layer.deviation) == 0.7
    layer.set_deviation(torch.tensor(0.9, dtype=torch.float64))
    assert float(layer.deviation) == 0.9
    assert layer.deviation.data_ptr() == memory, "a recording reads this memory"


@pytest.mark.parametrize("name", SPREADS)
def test_forward_changes_no_buffer(name: str) -> None:
    layer = NoiseLayer((2,), Law.LAPLACE, SIGMA, SPREADS[name])
    before = [buffer._version for buffer in layer.buffers()]
    layer(torch.zeros(3, 2))
    assert [buffer._version for buffer in layer.buffers()] == before


@pytest.mark.parametrize("deviation", [-0.1, math.nan, math.inf])
def test_refuses_a_deviation_without_meaning(deviation: float) -> None:
    with pytest.raises(ConfigError, match="deviation of the noise"):
        NoiseLayer((2,), Law.GAUSSIAN, deviation, UniformSpread((2,)))
    layer = NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((2,)))
    with pytest.raises(ConfigError, match="deviation of the noise"):
        layer.set_deviation(deviation)
    assert float(layer.deviation) == 0.1


def test_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="spread does not fit"):
        NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((3,)))
    layer = NoiseLayer((2,), Law.GAUSSIAN, 0.1, UniformSpread((2,)))
    with pytest.raises(ModelError, match="noise layer does not fit"):
        layer(torch.zeros(3, 1))  # broadcasting would otherwise spread one number over two coordinates
