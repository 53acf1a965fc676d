"""The verifier's own proof of operator norms: its matrix is the layer, honest numbers are proven, none below a norm is."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from twinproof.privacy.operator_norm import operator_norm
from twinproof_verify import operator_norms
from twinproof_verify.layers import (
    MOST_ENTRIES,
    Layer,
    LayerError,
    LayerTooLargeError,
    Matrix,
    column_sums,
    convolution,
    largest_output,
    linear,
    row_sums,
)
from twinproof_verify.operator_norms import least_provable, reached

Array = NDArray[np.float64]
PAIRS = list(itertools.product(["l1", "l2", "linf"], ["l1", "l2"]))


def matrix_of(layer: nn.Module, shape: tuple[int, ...], scales: Array) -> Array:
    """The layer as a matrix, by passing unit vectors through it."""
    with torch.no_grad():
        plain = layer.double()
        units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
        outputs = plain(units) - plain(torch.zeros(1, *shape, dtype=torch.float64))
    return np.asarray(outputs.flatten(1).numpy().T / scales[:, None])


def read(layer: nn.Module, shape: tuple[int, ...]) -> Layer:
    """The same layer for the verifier."""
    weight = layer.get_parameter("weight").detach().double().numpy()
    if isinstance(layer, nn.Linear):
        return linear(weight, layer.in_features)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    padding = layer.padding if isinstance(layer.padding, str) else tuple(layer.padding)
    return convolution(weight, shape, tuple(layer.stride), padding, tuple(layer.dilation), layer.groups)


def dense(matrix: Matrix) -> Array:
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


def signs(count: int) -> Array:
    """Every sign pattern, as columns."""
    return np.array(list(itertools.product([-1.0, 1.0], repeat=count))).T


def norm_of(matrix: Array, source: str, target: str) -> float:
    """The operator norm by enumeration; from l2 to l1 it is that of the transpose from linf to l2."""
    order = int(target[1])
    if source == "l1":
        return float(np.linalg.norm(matrix, ord=order, axis=0).max())
    if source == "linf":
        return float(np.linalg.norm(matrix @ signs(matrix.shape[1]), ord=order, axis=0).max())
    return float(np.linalg.norm(matrix, ord=2) if order == 2 else np.linalg.norm(matrix.T @ signs(len(matrix)), axis=0).max())


LAYERS = {
    "linear": (nn.Linear(9, 7), (9,)),
    "strided": (nn.Conv2d(1, 4, 3, stride=2, padding=1), (1, 3, 3)),
    "grouped": (nn.Conv1d(2, 4, 2, groups=2), (2, 5)),
    "dilated": (nn.Conv2d(2, 1, 2, dilation=2, padding=(1, 0)), (2, 2, 4)),
    "the same size": (nn.Conv1d(1, 2, 4, padding="same"), (1, 6)),
    "without padding": (nn.Conv1d(1, 2, 3, padding="valid"), (1, 7)),
    "three axes": (nn.Conv3d(1, 2, (1, 2, 2), stride=(1, 2, 1)), (1, 2, 2, 3)),
}


def layer_of(name: str) -> tuple[nn.Module, tuple[int, ...], Array]:
    layer, shape = LAYERS[name]
    torch.manual_seed(0)
    for weight in layer.parameters():
        nn.init.normal_(weight)
    outputs = layer(torch.zeros(1, *shape, dtype=layer.get_parameter("weight").dtype)).numel()
    return layer, shape, np.random.default_rng(2).uniform(0.5, 2, outputs).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", LAYERS)
def test_the_matrix_is_the_layer(name: str) -> None:
    layer, shape, scales = layer_of(name)
    truth = matrix_of(layer, shape, scales)
    matrix = read(layer, shape).matrix(scales)
    np.testing.assert_allclose(dense(matrix), truth, rtol=1e-15)
    np.testing.assert_allclose(row_sums(matrix), np.abs(truth).sum(axis=1), rtol=1e-14)
    np.testing.assert_allclose(column_sums(matrix), np.abs(truth).sum(axis=0), rtol=1e-14)
    corners = np.array(list(itertools.product([0.0, 1.0], repeat=math.prod(shape)))).T
    assert largest_output(matrix) == pytest.approx(np.abs(truth @ corners).max(), rel=1e-12)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("name", LAYERS)
def test_no_number_below_the_norm_is_proven_and_the_certifiers_is(name: str, source: str, target: str) -> None:
    layer, shape, scales = layer_of(name)
    matrix = read(layer, shape).matrix(scales)
    truth = norm_of(dense(matrix), source, target)
    for share in (0.5, 0.96, 0.999, 1 - 1e-8):
        assert least_provable(matrix, source, target, truth * share) > truth * share
    honest = operator_norm(layer, shape, source=source, target=target, scale=scales).value
    assert least_provable(matrix, source, target, honest) == honest
    assert truth * 0.85 <= reached(matrix, source, target) <= truth


SHAPES = ["normal", "ternary", "positive", "of rank one", "diagonal", "mostly zero", "of many sizes", "of matching signs"]


def random_weights(kind: str, generator: np.random.Generator) -> Array:
    rows, columns = generator.integers(1, 13, 2)
    normal = generator.standard_normal((rows, columns))
    flips = np.sign(generator.standard_normal((rows, 1))) * np.sign(generator.standard_normal((1, columns)))
    made = {
        "normal": normal,
        "ternary": generator.integers(-1, 2, (rows, columns)).astype(np.float64),
        "positive": np.abs(normal),
        "of rank one": np.outer(normal[:, 0], normal[0]),
        "diagonal": np.eye(rows, columns),
        "mostly zero": normal * (generator.random((rows, columns)) < 0.2),
        "of many sizes": normal * np.exp(8 * generator.standard_normal((rows, 1))),
        "of matching signs": np.abs(normal) * flips,
    }
    return np.asarray(made[kind].astype(np.float32), dtype=np.float64)


@pytest.mark.parametrize("kind", SHAPES)
def test_every_number_of_the_certifier_is_proven(kind: str) -> None:
    """Also where its bound is the norm itself to the last digits, which weights alone do not reach."""
    generator = np.random.default_rng(5)
    for _ in range(12):
        weights = random_weights(kind, generator)
        layer = nn.Linear(weights.shape[1], weights.shape[0], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights))
        matrix = linear(weights, weights.shape[1]).matrix(np.ones(len(weights)))
        for source, target in PAIRS:
            honest = operator_norm(layer, (weights.shape[1],), source=source, target=target)
            if honest.value > 0:
                assert least_provable(matrix, source, target, honest.value) == honest.value, (weights.tolist(), source, target)
                assert least_provable(matrix, source, target, honest.lower * 0.999) > honest.lower * 0.999


MNIST = {
    "5x5, stride 2": (nn.Conv2d(1, 32, 5, stride=2, padding=2), (1, 28, 28)),
    "8x8, stride 2": (nn.Conv2d(1, 16, 8, stride=2, padding=2), (1, 28, 28)),
    "linear": (nn.Linear(784, 64), (784,)),
}


@pytest.mark.parametrize(("source", "target"), [("l2", "l2"), ("l2", "l1"), ("linf", "l2"), ("linf", "l1")])
@pytest.mark.parametrize("name", MNIST)
def test_layers_of_mnist_take_seconds_and_an_understated_norm_fails(name: str, source: str, target: str) -> None:
    """1 % is more than what the certifier's bound is above the best of its kind; a number that is proven is not understated."""
    layer, shape = MNIST[name]
    torch.manual_seed(1)
    nn.init.normal_(layer.get_parameter("weight"), std=0.2)
    read_layer = read(layer, shape)
    scales = np.random.default_rng(2).uniform(0.5, 2, read_layer.outputs)
    matrix = read_layer.matrix(scales)
    honest = operator_norm(layer, shape, source=source, target=target, scale=scales).value
    started = time.thread_time()
    assert least_provable(matrix, source, target, honest) == honest
    assert least_provable(matrix, source, target, honest * 0.96) > honest * 0.96
    assert least_provable(matrix, source, target, honest * 0.99) > honest * 0.99
    assert time.thread_time() - started < 10


def test_a_larger_image_is_factorised_in_a_band(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers as with the whole matrix, for a layer that is small enough for both."""
    torch.manual_seed(2)
    layer, shape = nn.Conv2d(2, 6, 3, padding=1), (2, 12, 12)
    matrix = read(layer, shape).matrix(np.ones(6 * 144))
    claims = {pair: operator_norm(layer, shape, *pair).value for pair in (("l2", "l2"), ("linf", "l2"))}
    whole = {pair: least_provable(matrix, *pair, claim) for pair, claim in claims.items()}
    monkeypatch.setattr(operator_norms, "LARGEST_SIDE", 100)
    for pair, claim in claims.items():
        assert least_provable(matrix, *pair, claim) == whole[pair] == claim
        assert least_provable(matrix, *pair, claim * 0.96) > claim * 0.96


def test_what_is_too_large_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    image, scales = (3, 2000, 2000), np.broadcast_to(1.0, (64 * 2000 * 2000,))
    tracemalloc.start()
    try:
        with pytest.raises(LayerTooLargeError):
            convolution(np.ones((64, 3, 7, 7)), image, (1, 1), (3, 3)).matrix(scales)
        with pytest.raises(LayerTooLargeError):
            linear(np.broadcast_to(1.0, (2**13, 2**13)), 2**13).matrix(np.ones(2**13))
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(operator_norms, "LARGEST_SIDE", 4)
    with pytest.raises(LayerTooLargeError):
        least_provable(np.random.default_rng(0).standard_normal((6, 5)), "l2", "l2", 1.0)
    assert MOST_ENTRIES <= 2**24


@pytest.mark.parametrize(
    ("weight", "shape"),
    [((4, 1, 9, 9), (1, 3, 3)), ((4, 2, 3, 3), (1, 8, 8)), ((4, 1, 3), (1, 8, 8)), ((0, 1, 3, 3), (1, 8, 8))],
)
def test_weights_that_do_not_fit_the_input_are_refused(weight: tuple[int, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(LayerError):
        convolution(np.ones(weight), shape, (1,) * (len(shape) - 1), (0,) * (len(shape) - 1))
    with pytest.raises(LayerError):
        linear(np.ones((3, 4)), 5)
    with pytest.raises(LayerError):
        linear(np.ones((3, 4)), 4).matrix(np.ones(2))


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("claimed", [0.0, -1.0, math.inf, math.nan, 1e-300, 1e300])
def test_numbers_that_mean_nothing_end_in_a_number(source: str, target: str, claimed: float) -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 5))
    assert least_provable(matrix, source, target, claimed) != claimed or claimed == math.inf
    for weights in (matrix * 1e300, np.full((6, 5), np.nan), np.full((6, 5), np.inf)):
        for number in (1.0, claimed):
            assert least_provable(weights, source, target, number) == math.inf
    assert least_provable(matrix * 1e-300, source, target, 1.0) == 1.0


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1e3, 1e12])
def test_sizes_of_weights_do_not_matter(size: float) -> None:
    weights = np.random.default_rng(3).standard_normal((8, 6))
    for source, target in PAIRS:
        truth = norm_of(weights, source, target) * size
        assert least_provable(weights * size, source, target, truth * 2) == truth * 2
        assert least_provable(weights * size, source, target, truth * 0.99) > truth * 0.99


def test_a_layer_that_ignores_its_input_stretches_nothing() -> None:
    for source, target in PAIRS:
        assert reached(np.zeros((3, 4)), source, target) == 0.0
        assert least_provable(np.zeros((3, 4)), source, target, 1e-9) == 1e-9
