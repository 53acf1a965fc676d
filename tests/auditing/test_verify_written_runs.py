"""What the writers really write: runs of networks with noise, trained, certified and attacked, pass; changed ones do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Method, Sampling
from twinproof.data.record import Dataset
from twinproof.evaluation.protocols import AttackPlan
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.runs.layout import update_run_json
from twinproof.runs.run import Run
from twinproof_verify import Originals

SCORES = Method(norm="linf", statistic="scores", confidence="empirical-bernstein", runner_up="union")
METHODS = [Method(norm="linf"), Method(norm="l1", bound="hgm"), Method(norm="linf", bound="published"), SCORES]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with redistributed noise behind its first layer; not to be changed."""
    root = tmp_path_factory.mktemp("noisy") / "run"
    settings: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "hgm-pixeldp", "model": "mlp", "steps": 60, "seed": 2}
    train({**settings, "performance": {"device": "cpu"}}, root)
    return root


def change_json(root: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads((root / name).read_text())
    change(record)
    (root / name).write_text(json.dumps(record))
    update_run_json(root, files=(name,))


def enlarge(root: Path) -> None:
    """The released first layer is one percent larger than the certified one, and the digest in run.json is put right."""
    weights = dict(load_file(root / "model.safetensors"))
    weights["1.weight"] = weights["1.weight"] * weights["1.weight"].dtype.type(1.01)
    (root / "model.safetensors").write_bytes(save(weights))
    update_run_json(root, files=("model.safetensors",))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.norm}-{method.bound}-{method.statistic}")
def test_what_certify_run_writes_passes_and_a_larger_layer_does_not(
    noisy: Path, dataset: Dataset, tmp_path: Path, method: Method
) -> None:
    root = Path(shutil.copytree(noisy, tmp_path / "run"))
    made = tp.certify(Run.open(root), dataset, sampling=Sampling(20, 400), method=method, limit=12, device="cpu")
    assert verify_run(root).problems == ()
    assert made.settings.largest_radius > 0
    assert made.settings.noise.place == "first-layer"
    enlarge(root)
    assert any("operator_norm is below" in problem.what for problem in verify_run(root).problems)


def test_attacks_without_certificates_are_on_the_networks_own_noise(noisy: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(noisy, tmp_path / "run"))
    plan = AttackPlan("linf", sizes=(0.125,), attacks=("fgsm",), steps=2, draws=1)
    tp.attack(Run.open(root), dataset, plan=plan, sampling=Sampling(10, 100), limit=5, device="cpu")
    assert verify_run(root).problems == ()
    change_json(root, "attacks/linf/attacks.json", lambda record: record["noise"].update(sigma=record["noise"]["sigma"] * 1.01))
    assert any("the network's own noise" in problem.what for problem in verify_run(root).problems)


@pytest.mark.parametrize(("norm", "aim"), [("l2", None), ("linf", "next"), ("l1", "least-likely"), ("l2", "class:1")])
def test_what_attack_run_writes_passes_and_its_inputs_moved_do_not(
    trained: Path, dataset: Dataset, tmp_path: Path, norm: str, aim: str | None
) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    plan = AttackPlan(norm, sizes=(0.125, 1.0), attacks=("fgsm", "pgd"), steps=2, draws=1, aim=aim)
    tp.attack(Run.open(root), dataset, plan=plan, sampling=Sampling(10, 50), limit=6, device="cpu", key=Key.from_seed(2))
    originals = Originals(dataset.test.inputs, dataset.test.labels)
    assert verify_run(root).problems == ()
    assert verify_run(root, originals=originals).problems == ()
    name = f"attacks/{norm}/attacks.safetensors"
    tensors = dict(load_file(root / name))
    tensors["adaptive/smoothed/pgd/0.125"] = dataset.levels - dataset.test.inputs[:6]
    (root / name).write_bytes(save(tensors))
    update_run_json(root, files=(name,))
    for given in (None, originals):
        assert any("outside the ball" in problem.what for problem in verify_run(root, originals=given).problems)
