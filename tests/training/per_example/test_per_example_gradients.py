"""Representations of one parameter's gradients: norms that are never too small, sums that are exact, records left out."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from twinproof.training.per_example import EmbeddingFactors, Instantiated, LinearFactors, PerExampleGradient, gradients
from twinproof.training.per_example.gradients import Rearranged, zero_gradient
from twinproof.training.per_example.layers import factors_are_cheaper


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, rows: int, seed: int) -> Tensor:
    return torch.randint(0, rows, shape, generator=torch.Generator().manual_seed(seed))


def representations(seed: int, number: int = 4) -> dict[str, PerExampleGradient]:
    """One of each kind; the embedding has more tokens than rows, so that ids repeat."""
    factors = LinearFactors(drawn(number, 3, 5, seed=seed), drawn(number, 3, 2, seed=seed + 1))
    return {
        "instantiated": Instantiated(drawn(number, 2, 3, seed=seed)),
        "scalar": Instantiated(drawn(number, seed=seed)),
        "linear": factors,
        "embedding": EmbeddingFactors(tokens(number, 6, rows=3, seed=seed), drawn(number, 6, 2, seed=seed), 3),
        "rearranged": Rearranged(factors, (2, 5, 1), (0, 2, 1)),
        "zero": zero_gradient(torch.ones(2, 3), number),
    }


KINDS = list(representations(0))


def exact_gradient(gradient: PerExampleGradient, record: int) -> list[Fraction]:
    """One record's gradient in exact arithmetic from the stored float32 factors."""
    if isinstance(gradient, Rearranged):
        return exact_gradient(gradient.inner, record)
    if isinstance(gradient, LinearFactors):
        inputs, errors = gradient.inputs[record].tolist(), gradient.errors[record].tolist()
        pairs = [(o, i) for o in range(len(errors[0])) for i in range(len(inputs[0]))]
        return [
            sum((Fraction(e[o]) * Fraction(x[i]) for e, x in zip(errors, inputs, strict=True)), Fraction()) for o, i in pairs
        ]
    if isinstance(gradient, EmbeddingFactors):
        sums = [[Fraction()] * gradient.errors.shape[2] for _ in range(gradient.rows)]
        for row, error in zip(gradient.ids[record].tolist(), gradient.errors[record].tolist(), strict=True):
            sums[row] = [total + Fraction(value) for total, value in zip(sums[row], error, strict=True)]
        return [value for row_sums in sums for value in row_sums]
    return [Fraction(value) for value in gradient.instantiate()[record].flatten().tolist()]


def exact_squared_norm(gradient: PerExampleGradient, record: int) -> Fraction:
    return sum((value * value for value in exact_gradient(gradient, record)), Fraction())


@pytest.mark.parametrize("kind", KINDS)
def test_norm_is_never_below_the_exact_one(kind: str) -> None:
    for seed in range(20):
        gradient = representations(10 * seed)[kind]
        for record, norm in enumerate(gradient.squared_norms().tolist()):
            exact = exact_squared_norm(gradient, record)
            assert exact <= Fraction(norm) <= exact * (1 + Fraction(1, 10**12))


def plain_gram(gradient: LinearFactors) -> Tensor:
    """Wrong on purpose: the Gram norm in float64 without a bound for its own rounding."""
    inputs, errors = gradient.inputs.double(), gradient.errors.double()
    return ((inputs @ inputs.mT) * (errors @ errors.mT)).sum((1, 2))


def test_cancelling_factors_do_not_understate_the_norm() -> None:
    """Two outer products that nearly cancel: the Gram norm loses all digits, and must then err upwards."""
    below = 0
    for seed in range(40):
        inputs, errors = drawn(1, 1, 5, seed=seed) * 1e4, drawn(1, 1, 4, seed=seed + 99) * 1e4
        nearly = inputs * (1 + 2.0**-23)
        gradient = LinearFactors(torch.cat([inputs, nearly], 1), torch.cat([errors, -errors], 1))
        exact = exact_squared_norm(gradient, 0)
        assert Fraction(gradient.squared_norms().item()) >= exact
        below += Fraction(plain_gram(gradient).item()) < exact
    assert below > 5


def test_repeated_tokens_that_cancel_do_not_understate_the_norm() -> None:
    errors = torch.tensor([[[1e8], [1.0], [-1e8]]])
    gradient = EmbeddingFactors(torch.zeros(1, 3, dtype=torch.long), errors, 2)
    assert 1.0 <= gradient.squared_norms().item() <= 1.0 + 1e-6


def test_float32_norm_of_a_long_vector_is_too_small_and_ours_is_not() -> None:
    length = 25_000_000
    values = torch.full((1, length), 0.1)
    exact = length * Fraction(values[0, 0].item()) ** 2
    planted = float(torch.linalg.vector_norm(values)) ** 2
    assert planted < 0.999 * float(exact)
    assert exact <= Fraction(Instantiated(values).squared_norms().item()) <= exact * (1 + Fraction(1, 10**7))


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_sum_is_exact_to_twelve_digits(kind: str) -> None:
    gradient = representations(7)[kind]
    weights = torch.rand(4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    total = gradient.weighted_sum(weights)
    assert total.dtype == torch.float64
    assert total.shape == gradient.instantiate().shape[1:]
    rows = [exact_gradient(gradient, record) for record in range(4)]
    exact = [
        sum((Fraction(w) * row[i] for w, row in zip(weights.tolist(), rows, strict=True)), Fraction())
        for i in range(len(rows[0]))
    ]
    found = total.permute(0, 2, 1).flatten() if kind == "rearranged" else total.flatten()
    scale = max([float(abs(value)) for value in exact] + [1e-300])
    assert max(abs(float(Fraction(f) - e)) for f, e in zip(found.tolist(), exact, strict=True)) <= 1e-12 * scale
    if kind == "instantiated":
        planted = torch.einsum("m,m...->...", weights.float(), gradient.instantiate()).flatten().tolist()
        assert max(abs(float(Fraction(f) - e)) for f, e in zip(planted, exact, strict=True)) > 1e-10 * scale


@pytest.mark.parametrize("kind", KINDS)
def test_factors_agree_with_the_instantiated_gradient(kind: str) -> None:
    gradient = representations(3)[kind]
    formed = Instantiated(gradient.instantiate())
    weights = torch.linspace(0, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(gradient.squared_norms(), formed.squared_norms(), rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(gradient.weighted_sum(weights), formed.weighted_sum(weights), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("kind", ["instantiated", "scalar", "linear", "embedding", "rearranged"])
def test_a_record_of_weight_zero_adds_nothing_whatever_it_holds(kind: str, bad: float) -> None:
    clean, spoiled = representations(11)[kind], representations(11)[kind]
    inner = spoiled.inner if isinstance(spoiled, Rearranged) else spoiled
    for name in ("values", "inputs", "errors"):
        if hasattr(inner, name):
            getattr(inner, name)[1] = bad
    weights = torch.tensor([0.3, 0.0, 0.2, 1.0], dtype=torch.float64)
    assert torch.equal(spoiled.weighted_sum(weights), clean.weighted_sum(weights))
    planted = torch.einsum("m,m...->...", weights, spoiled.instantiate().double())  # zero times NaN is NaN
    assert planted.isnan().any() or bad == 1e38


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["instantiated", "linear", "embedding"])
def test_what_is_not_finite_and_counts_shows(kind: str, bad: float) -> None:
    """Setting records to zero must not hide one that has a weight."""
    spoiled = representations(11)[kind]
    for name in ("values", "inputs", "errors"):
        if hasattr(spoiled, name):
            getattr(spoiled, name)[1] = bad
    assert not torch.isfinite(spoiled.weighted_sum(torch.tensor([0.3, 0.1, 0.0, 1.0], dtype=torch.float64))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_records(kind: str) -> None:
    gradient, usual = representations(1, number=0)[kind], representations(1)[kind]
    nothing = torch.zeros(0, dtype=torch.float64)
    assert gradient.squared_norms().shape == (0,)
    assert gradient.instantiate().shape == (0, *usual.instantiate().shape[1:])
    assert torch.equal(gradient.weighted_sum(nothing), torch.zeros_like(usual.weighted_sum(torch.ones(4, dtype=torch.float64))))


def test_blocks_do_not_change_the_sum() -> None:
    """More elements than one block of scratch memory holds."""
    values = drawn(9, 50_000, seed=1)
    weights = torch.linspace(0.5, 1.5, 9, dtype=torch.float64)
    gradient = Instantiated(values)
    torch.testing.assert_close(gradient.weighted_sum(weights), weights @ values.double(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient.squared_norms(), values.double().square().sum(1), rtol=1e-10, atol=0)


@pytest.mark.parametrize("limit", [1, 8, 35])
def test_blocks_never_understate_the_norm(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows cut into many parts, with entries of very different size; the same without the raise comes out too small."""
    monkeypatch.setitem(gradients._BLOCK_ELEMENTS, "cpu", limit)
    monkeypatch.setattr(gradients, "_SMALL_ELEMENTS", 0)
    below = 0
    for seed in range(20):
        values = drawn(4, 40, seed=seed) * torch.logspace(-6, 6, 40)
        for record, norm in enumerate(Instantiated(values).squared_norms().tolist()):
            exact = sum((Fraction(value) ** 2 for value in values[record].tolist()), Fraction())
            assert exact <= Fraction(norm) <= exact * (1 + Fraction(1, 10**12))
            below += Fraction(values[record].double().square().sum().item()) < exact
    assert below > 5


def test_blocks_share_memory_but_not_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are converted in the same place, one after the other: nothing taken from one may change with the next."""
    values, weights = drawn(3, 100, seed=4), torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)
    whole = Instantiated(values).weighted_sum(weights), Instantiated(values).squared_norms()
    monkeypatch.setitem(gradients._BLOCK_ELEMENTS, "cpu", 21)
    monkeypatch.setattr(gradients, "_SMALL_ELEMENTS", 0)
    torch.testing.assert_close(Instantiated(values).weighted_sum(weights), whole[0], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(Instantiated(values).squared_norms(), whole[1], rtol=1e-13, atol=0)
    planted = torch.cat([weights @ block for block in list(gradients._float64_blocks(values))])
    assert not torch.allclose(planted, whole[0])


@pytest.mark.parametrize(
    ("positions", "n_in", "n_out", "kept"),
    [
        (1, 512, 32, True),
        (3, 512, 32, True),
        (1, 16, 16, True),
        (16, 4608, 512, True),
        (25, 256, 32, False),
        (75, 256, 32, False),
        (64, 128, 128, False),
        (64, 2304, 256, False),
    ],
)
def test_choice_between_factors_and_matrices(positions: int, n_in: int, n_out: int, kept: bool) -> None:
    """By measured cost on a CPU."""
    assert factors_are_cheaper(positions, n_in, n_out) is kept


@pytest.mark.parametrize(("positions", "kept"), [(1, True), (2, True), (7, True), (8, False)])
def test_choice_on_a_gpu_is_by_memory(positions: int, kept: bool) -> None:
    assert factors_are_cheaper(positions, 256, 32, "cuda") is kept
