"""How many examples are measured together: what fits the device, and no number that depends on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from twinproof.layers.models.registry import build_network
from twinproof_papers.example_metrics.measure import measure_examples
from twinproof_papers.example_metrics.relation import METRICS, ExampleMetrics
from twinproof_papers.example_metrics.subject import (
    MOST,
    ON_CPU,
    bytes_of_row,
    in_batches,
    row_losses,
    rows_at_once,
    rows_that_fit,
)

SHAPE = (1, 28, 28)
IMAGES = 4
GIB = 1 << 30


def network(name: str, width: int = 1) -> nn.Module:
    torch.manual_seed(3)
    return build_network(name, SHAPE, 10, width=width).eval().requires_grad_(False)


def images(count: int = IMAGES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.rand((count, *SHAPE), generator=generator), torch.randint(0, 10, (count,), generator=generator)


class Centred(nn.Module):
    """Planted: a network in which every example sees the others."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x - x.mean(dim=0, keepdim=True))
        return scores


def furthest(one: list[ExampleMetrics], other: list[ExampleMetrics], names: Sequence[str]) -> float:
    """The largest relative difference of any of the metrics of any example."""
    columns = [np.array([[float(getattr(example, name)) for name in names] for example in each]) for each in (one, other)]
    return float((np.abs(columns[0] - columns[1]) / np.abs(columns[0])).max())


NETWORKS = {"the paper's network": network("tramer-boneh-cnn"), "the house network": network("gelu-cnn", 2)}
# The published loop goes down to where the ratio is small, by signs of slopes that are near 0 there: rounding is magnified.
STEADY = [name for name in METRICS if not name.endswith("_code")]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "metrics"), [(torch.float32, STEADY), (torch.float64, METRICS)])
def test_numbers_do_not_depend_on_the_batches(name: str, dtype: torch.dtype, metrics: Sequence[str]) -> None:
    """In float64 none does, so that what is left in float32 is rounding."""
    model, (inputs, labels) = copy.deepcopy(NETWORKS[name]).to(dtype), images()
    whole = measure_examples(model, inputs.to(dtype), labels)
    parts = measure_examples(model, inputs.to(dtype), labels, batch_size=3)
    assert furthest(whole, parts, metrics) < (1e-5 if dtype == torch.float32 else 1e-9)


def test_a_network_that_mixes_examples_is_caught() -> None:
    """Planted: the check above would see it."""
    model, (inputs, labels) = Centred(NETWORKS["the paper's network"]), images()
    whole, parts = (measure_examples(model, inputs, labels, batch_size=size) for size in (IMAGES, 3))
    assert furthest(whole, parts, ["gradient_norm"]) > 1e-3


@pytest.mark.parametrize(
    ("free", "each", "rows"),
    [
        (139 * GIB, 500_000, MOST),
        (8 * GIB, 500_000, 1073),
        (139 * GIB, 1_200_000, 7773),
        (1000, 500_000, 1),
        (0, 0, 1),
    ],
)
def test_rows_take_a_fair_share_of_what_is_free(free: int, each: int, rows: int) -> None:
    assert rows_that_fit(free, each) == rows
    assert rows == 1 or 16 * rows * each <= free, "16 of them at a time fit"


def graph_bytes(model: nn.Module, rows: int) -> int:
    """What the graph of the slopes keeps, of which every product with a Hessian is a backward pass."""
    inputs, labels = images(rows)
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        points = inputs.requires_grad_()
        torch.autograd.grad(row_losses(model, points, labels).sum(), points, create_graph=True)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    "name", ["mlp", "small-cnn", "tramer-boneh-cnn", "gelu-cnn", "scatter-cnn", "stobatch-cnn", "small-vit"]
)
def test_a_row_is_not_underestimated(name: str) -> None:
    """Twice the graph of a Hessian: a product has intermediate results too. Planted: what a forward pass keeps, alone."""
    model = network(name)
    graph = (graph_bytes(model, 3) - graph_bytes(model, 1)) // 2
    vectors = 12 * 8 * 784
    each = bytes_of_row(model, images()[0][:1])
    assert 2 * graph + vectors <= each < 12 * graph + vectors
    forward = (each - vectors) // 8
    assert forward < graph


def test_the_device_decides_unless_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (inputs, _) = network("tramer-boneh-cnn"), images()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (4 * GIB, 8 * GIB))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [rows_at_once(model, inputs, device, 5) for device in (cpu, gpu)] == [5, 5]
    assert rows_at_once(model, inputs, cpu, None) == ON_CPU
    few = rows_at_once(model, inputs, gpu, None)
    assert few == rows_that_fit(4 * GIB, bytes_of_row(model, inputs[:1]))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (139 * GIB, 139 * GIB))
    assert rows_at_once(model, inputs, gpu, None) == MOST > few > ON_CPU


@pytest.mark.parametrize("decide", [lambda *_: 3, lambda *_: MOST])
def test_everything_is_measured_once(decide: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = images()
    for module in ("curvature", "lipschitz"):
        monkeypatch.setattr(f"twinproof_papers.example_metrics.{module}.rows_at_once", decide)
    examples = measure_examples(network("mlp"), inputs, labels)
    assert [example.label for example in examples] == labels.tolist()


@pytest.mark.parametrize(("examples", "size"), [(7, 3), (6, 3), (2, 5), (1, 1)])
def test_batches_are_all_rows_in_order(examples: int, size: int) -> None:
    rows = [row for batch in in_batches(examples, size) for row in range(examples)[batch]]
    assert rows == list(range(examples))
