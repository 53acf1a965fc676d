"""All metrics of a run, and that batches do not matter."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
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
from twinproof_papers.example_metrics.measure import MeasuredRun, measure_examples, measure_run
from twinproof_papers.example_metrics.relation import METRICS, ExampleMetrics
from twinproof_papers.example_metrics.subject import (
    MOST,
    bytes_of_row,
    penultimate,
    row_losses,
    rows_that_fit,
)

LIMIT = 25


@pytest.fixture(scope="module")
def certified(trained: Path, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("measured") / "run"
    shutil.copytree(trained, root)
    tp.certify(Run.open(root), dataset, sampling=Sampling(20, 200), limit=20, device="cpu", key=Key.from_seed(6))
    return root


@pytest.fixture(scope="module")
def measured(certified: Path, dataset: Dataset) -> MeasuredRun:
    return measure_run(Run.open(certified), dataset, limit=LIMIT, device="cpu")


def test_every_metric_is_that_of_its_own_function(certified: Path, dataset: Dataset, measured: MeasuredRun) -> None:
    model = Run.open(certified).model()
    inputs = torch.from_numpy(dataset.test.inputs[:LIMIT]).float() / dataset.levels
    labels = torch.from_numpy(dataset.test.labels[:LIMIT])
    bends = input_hessian_norms(model, inputs, labels)
    logits, inner = (local_lipschitz(part, inputs) for part in (model, penultimate(model)))
    expected = {
        "label": labels,
        "gradient_norm": input_gradient_norms(model, inputs, labels),
        "hessian_norm": bends.spectral,
        "hessian_largest": bends.largest,
        "hessian_residual": bends.spectral_residual,
        "hessian_largest_residual": bends.largest_residual,
        "lipschitz_logits": logits.search,
        "lipschitz_logits_loop": logits.loop,
        "lipschitz_logits_code": logits.code,
        "lipschitz_penultimate": inner.search,
        "lipschitz_penultimate_loop": inner.loop,
        "lipschitz_penultimate_code": inner.code,
    }
    assert [example.index for example in measured.examples] == list(range(LIMIT))
    for name, values in expected.items():
        assert [getattr(example, name) for example in measured.examples] == values.tolist(), name


def test_the_summary_is_json_and_counts_everybody(measured: MeasuredRun) -> None:
    summary = json.loads(json.dumps(measured.summary(), allow_nan=False))
    assert set(summary["metrics"]) == set(summary["radius"]) == set(METRICS)
    assert summary["examples"] == LIMIT
    assert summary["not_converged"] == 0
    for name in METRICS:
        bins = summary["metrics"][name]["histogram"]
        assert sum(bins["counts"]) + bins["not_positive"] == LIMIT
        assert sum(group["count"] for group in summary["radius"][name]["groups"]) == 20, "those that have a certificate"


def test_nothing_is_written_and_a_run_without_certificates_has_no_relations(
    trained: Path, dataset: Dataset, certified: Path, measured: MeasuredRun
) -> None:
    before = {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()}
    again = measure_run(Run.open(certified), dataset, limit=LIMIT, device="cpu")
    assert again == measured
    assert {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()} == before
    assert measure_run(Run.open(trained), dataset, limit=2, device="cpu").relations == ()


def test_certificates_of_other_weights_are_refused(certified: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(certified, root)
    record = json.loads((root / "certificates/l2/certificates.json").read_text())
    record["network"]["model_sha256"] = "0" * 64
    (root / "certificates/l2/certificates.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="other weights"):
        measure_run(Run.open(root), dataset, limit=2, device="cpu")


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
    assert json.dumps(examples[0].as_dict(), allow_nan=False)


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


@pytest.mark.parametrize("decide", [lambda *_: 3, lambda *_: MOST])
def test_everything_is_measured_once(decide: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = images()
    for module in ("curvature", "lipschitz"):
        monkeypatch.setattr(f"twinproof_papers.example_metrics.{module}.rows_at_once", decide)
    examples = measure_examples(network("mlp"), inputs, labels)
    assert [example.label for example in examples] == labels.tolist()
