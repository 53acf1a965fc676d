"""Measuring a run: all metrics in one record, joined to its certificates, written nowhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import twinproof as tp
from twinproof.certification.method import Sampling
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.evaluation.example_metrics import (
    METRICS,
    MeasuredRun,
    input_gradient_norms,
    input_hessian_norms,
    local_lipschitz,
    measure_examples,
    measure_run,
    penultimate,
)
from twinproof.keys import Key
from twinproof.runs.run import Run

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


def test_a_limit_of_nothing_is_refused(trained: Path, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="nothing to measure"):
        measure_run(Run.open(trained), dataset, limit=0)


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
