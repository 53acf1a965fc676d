"""A layer as a matrix that is never written down: torch's products, bounds for large layers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_norm_oracles import Case, dense, random_case
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.privacy import spectral
from twinproof.privacy.linear_maps import Norm, layer_map
from twinproof.privacy.operator_norm import dimension_bound, magnitude_bounds, operator_norm
from twinproof.privacy.spectral import ascend, proven_top_eigenvalue, relaxed_bound, symbol_bound

KINDS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Any number of axes, each with its own kernel, stride, padding and dilation; groups; 'same' and 'valid'."""
    axes = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.integers(1, 2))
    kernel, dilation, padding = each(1, 3), each(1, 2), draw(st.sampled_from(["own", "same", "valid"]))
    reach = [gap * (size - 1) + 1 for gap, size in zip(dilation, kernel, strict=True)]
    sizes = tuple(size + draw(st.integers(0, 2)) for size in reach)
    layer = KINDS[axes](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride=1 if padding == "same" else each(1, 3),
        padding=each(0, 2) if padding == "own" else padding,
        dilation=dilation,
        groups=groups,
    ).double()
    return Case(layer, (layer.in_channels, *sizes))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(case=convolutions(), seed=st.integers(0, 99), scaled=st.booleans())
def test_products_are_those_of_the_written_down_matrix(case: Case, seed: int, scaled: bool) -> None:
    random = np.random.default_rng(seed)
    if scaled:
        case = Case(case.layer, case.shape, np.exp(random.normal(0, 1, len(dense(case)))))
    matrix, mapped = dense(case), layer_map(case.layer, case.shape, case.scale)
    outputs, inputs = matrix.shape
    assert (mapped.outputs, mapped.inputs) == (outputs, inputs)
    rows, columns = random.random((outputs,)), random.random((inputs,))
    matrix = np.ldexp(matrix, -mapped.exponent) * rows[:, None] * columns
    mapped = mapped.rescaled(rows, columns)
    vectors, duals = random.standard_normal((inputs, 3)), random.standard_normal((outputs, 2))
    np.testing.assert_allclose(mapped.apply(vectors), matrix @ vectors, atol=1e-12)
    np.testing.assert_allclose(mapped.adjoint(duals), matrix.T @ duals, atol=1e-12)
    np.testing.assert_allclose(mapped.absolute().apply(vectors), np.abs(matrix) @ vectors, atol=1e-12)
    np.testing.assert_allclose(mapped.squared().adjoint(duals), (matrix**2).T @ duals, atol=1e-12)
    np.testing.assert_allclose(mapped.column_gram(), matrix.T @ matrix, atol=1e-12)
    np.testing.assert_allclose(mapped.row_gram(), matrix @ matrix.T, atol=1e-12)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(case=convolutions(), seed=st.integers(0, 99), scaled=st.booleans())
def test_bounds_of_large_layers_hold_on_small_ones(case: Case, seed: int, scaled: bool) -> None:
    """Symbol, Schur's test and the Gram matrix's own bound, each alone, against the singular values."""
    if scaled:
        case = Case(case.layer, case.shape, np.exp(np.random.default_rng(seed).normal(0, 1, len(dense(case)))))
    mapped = layer_map(case.layer, case.shape, case.scale)
    top = float(np.linalg.svd(np.ldexp(dense(case), -mapped.exponent), compute_uv=False)[0]) * (1 - 1e-14)
    assert symbol_bound(case.layer, case.shape, mapped) >= top
    assert spectral.schur_square(mapped, 5) >= top**2
    assert top <= spectral.spectral_bound(mapped) <= top * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("target", ["l1", "l2"])
@pytest.mark.parametrize("source", ["l2", "linf"])
@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv2d(2, 4, 3, padding=1), (2, 9, 9)), (nn.Linear(90, 80), (90,))], ids=["conv", "linear"]
)
def test_without_a_gram_matrix_bounds_are_sound_and_not_hopeless(
    layer: nn.Conv2d | nn.Linear, shape: tuple[int, ...], source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(1)))
    tight = operator_norm(layer, shape, source, target)
    monkeypatch.setattr(spectral, "DENSE_LIMIT", 40)
    loose = operator_norm(layer, shape, source, target)
    assert loose.method != tight.method
    assert tight.lower <= loose.value <= 2.2 * tight.lower


def test_every_relaxed_bound_holds_whatever_the_weights() -> None:
    """An ascent of a single step, or of none that means anything, costs tightness only; each bound alone is sound."""
    random = np.random.default_rng(8)
    for number in range(60):
        case = random_case(random, most_inputs=12)
        mapped = layer_map(case.layer, case.shape, case.scale)
        if not mapped.row_scale.any():
            continue
        for source, target in ((Norm.LINF, Norm.L2), (Norm.L2, Norm.L1), (Norm.LINF, Norm.L1)):
            lower = np.ldexp(operator_norm(case.layer, case.shape, source, target, case.scale).lower, -mapped.exponent)
            bounds = [relaxed_bound(mapped, source, target, ascend(mapped, source, target, steps)) for steps in (1, 200)]
            bounds += [bound for bound, _ in magnitude_bounds(mapped, source, target)]
            bounds.append(dimension_bound(mapped, source, target, spectral.spectral_bound(mapped))[0])
            assert min(bounds) >= lower, (number, source, target)


@pytest.mark.parametrize("size", [1, 2, 50, 400])
def test_the_proven_eigenvalue_is_above_and_close(size: int) -> None:
    """A diagonal matrix turned by a reflection has its eigenvalues known; several of them nearly coincide."""
    random = np.random.default_rng(size)
    values = np.sort(random.random(size))
    values[-3:] = [1 - 1e-9, 1 - 1e-12, 1.0][-min(3, size) :]
    mirror = random.standard_normal(size)
    mirror /= np.linalg.norm(mirror)
    turned = np.diag(values) - 2 * np.outer(mirror, mirror * values)
    turned = turned - 2 * np.outer(turned @ mirror, mirror)
    answer = proven_top_eigenvalue((turned + turned.T) / 2, 1e-14, 10.0)
    assert 1 <= answer <= 1 + 1e-8


def test_where_nothing_can_be_proven_the_bound_of_magnitudes_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "top_eigenvalue_guess", lambda gram: 0.1)
    assert proven_top_eigenvalue(np.eye(30), 0.0, 7.0) == 7.0


class Doubled(nn.Linear):
    """A linear layer by type, and another function."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return 2 * super().forward(input)


def hooked() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def replaced() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.__dict__["forward"] = lambda x: 2 * x
    return layer


def weight(value: float) -> nn.Module:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight[1, 2] = value
    return layer


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.ReLU(), (3,), "operator norm of this layer is not known"),
        (nn.ConvTranspose2d(1, 1, 2), (1, 4, 4), "operator norm of this layer is not known"),
        (nn.Sequential(nn.Linear(3, 2)), (3,), "operator norm of this layer is not known"),
        (Doubled(3, 2), (3,), "operator norm of this layer is not known"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (3,), "operator norm of this layer is not known"),
        (hooked(), (3,), "does more than its type says"),
        (replaced(), (3,), "does more than its type says"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (1, 4, 4), "padding is not known"),
        (nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect"), (1, 4), "padding is not known"),
        (weight(float("nan")), (3,), "NaN or infinity"),
        (weight(float("inf")), (3,), "NaN or infinity"),
        (nn.Linear(3, 2, dtype=torch.complex64), (3,), "complex64"),
        (nn.Linear(3, 2), (4,), r"wanted: \(3\)"),
        (nn.Linear(3, 2), (1, 3), r"got: \(1, 3\)"),
        (nn.Conv2d(2, 1, 3), (1, 8, 8), r"wanted: \(2, any, any\)"),
        (nn.Conv2d(2, 1, 3), (2, 8), "does not fit the layer"),
        (nn.Conv2d(2, 1, 3), (2, 8, 0), "does not fit the layer"),
        (nn.Conv2d(2, 1, 3), (2, 8, 2), "kernel is larger than the input"),
    ],
)
def test_layers_and_shapes_that_are_refused(layer: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        operator_norm(layer, shape)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ([1.0], "1 numbers"),
        (np.ones(7), "one for each output"),
        ([1.0, 0.0], "smallest_scale cannot be used"),
        ([1.0, -2.0], "got: -2"),
        ([1.0, float("nan")], "scale cannot be used"),
        ([1.0, 1e-70], "from 1e-60 to"),
        ([1.0, float("inf")], "largest_scale cannot be used"),
    ],
)
def test_scales_and_norms_that_are_refused(scale: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        operator_norm(nn.Linear(3, 2), (3,), "linf", "l2", scale)
    for source, target, name in (("l0", "l2", "source"), ("l2", "linf", "target")):
        with pytest.raises(ConfigError, match=f"{name} cannot be used"):
            operator_norm(nn.Linear(3, 2), (3,), source, target)
