"""All metrics of a run, and that batches do not matter."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import twinproof as tp
from twinproof.certification.method import Sampling
from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.keys import Key
from twinproof.layers.networks import build_network
from twinproof.runs.run import Run
from twinproof_papers.example_metrics.curvature import input_gradient_norms, input_hessian_norms
from twinproof_papers.example_metrics.lipschitz import local_lipschitz
from twinproof_papers.example_metrics.measure import METRICS, ExampleMeasurement, ExampleMetrics, measure_examples
from twinproof_papers.example_metrics.subject import (
    MOST,
    bytes_of_row,
    penultimate,
    row_losses,
    rows_that_fit,
)
from twinproof_papers.smoothing import Smoothing


def test_every_metric_is_that_of_its_own_function(trained: Path, dataset: Dataset, tmp_path: Path) -> None:
    """The numbers of a run count every image, and those of certificates of other weights are refused."""
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    plan = Smoothing((0.25,), limit=20, n0=20, n=200)
    tp.certify(Run.open(root), dataset, sampling=Sampling(20, 200), sigma=0.25, limit=20, device="cpu", key=Key.from_seed(6))
    run = Run.open(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = json.loads(json.dumps(ExampleMeasurement(plan).numbers(run, dataset, device="cpu"), allow_nan=False))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before, "nothing is written"
    assert set(found["metrics"]) == set(found["radius"]["0.25"]) == set(METRICS)
    assert (found["examples"], found["not_converged"]) == (20, 0)
    inputs = torch.from_numpy(dataset.test.inputs[:20]).float() / dataset.levels
    labels, model = torch.from_numpy(dataset.test.labels[:20]), run.model()
    bends = input_hessian_norms(model, inputs, labels)
    logits, inner = (local_lipschitz(part, inputs) for part in (model, penultimate(model)))
    expected = {
        "gradient_norm": input_gradient_norms(model, inputs, labels),
        "hessian_norm": bends.spectral,
        "hessian_largest": bends.largest,
        **{f"lipschitz_logits{end}": value for end, value in (("", logits.search), ("_loop", logits.loop))},
        "lipschitz_penultimate_code": inner.code,
    }
    for name, values in expected.items():
        assert found["metrics"][name]["mean"] == float(values.numpy().mean()), name
        histogram = found["metrics"][name]["histogram"]
        assert sum(histogram["counts"]) + histogram["not_positive"] == 20
    record = json.loads((root / "certificates/l2/certificates.json").read_text())
    record["network"]["model_sha256"] = "0" * 64
    (root / "certificates/l2/certificates.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="other weights"):
        ExampleMeasurement(plan).numbers(Run.open(root), dataset, device="cpu")


class Hidden(nn.Module):
    """A network whose layers nobody sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores


def test_a_network_that_hides_its_layers_has_the_other_metrics() -> None:
    torch.manual_seed(0)
    examples = measure_examples(Hidden(), torch.rand(3, 4), torch.tensor([0, 1, 2]))
    assert all(example.lipschitz_penultimate is None and example.lipschitz_logits > 0 for example in examples)


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


@pytest.mark.parametrize("name", ["mlp", "tramer-boneh-cnn", "gelu-cnn", "small-vit"])
def test_a_row_is_not_underestimated(name: str) -> None:
    """Twice the graph of a Hessian: a product has intermediate results too. Planted: what a forward pass keeps, alone."""
    model = network(name)
    graph = (graph_bytes(model, 3) - graph_bytes(model, 1)) // 2
    vectors = 12 * 8 * 784
    each = bytes_of_row(model, images()[0][:1])
    assert 2 * graph + vectors <= each < 12 * graph + vectors
    forward = (each - vectors) // 8
    assert forward < graph
