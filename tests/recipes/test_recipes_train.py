"""Training as a whole: the first step by hand, noise that destroys and noise that does not, and what each recipe promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from recipe_fixtures import fresh_network
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import RECORDS, ledger_lines, model_bytes, run_json, tiny
from torch import Tensor

from twinproof.auditing.verify import verify_run
from twinproof.data.load import load
from twinproof.errors import RunError
from twinproof.guarantee import Status, round_up
from twinproof.keys import Key
from twinproof.privacy.accounting import PoissonGaussianEvent, epsilon_pld
from twinproof.privacy.step_randomness import poisson_sample
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.train import train
from twinproof.training.loop import mean_cross_entropy

# Enough to learn the digits well where nothing destroys it; the same for every noise.
LEARNING: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "dpsgd",
    "delta": 1e-4,
    "steps": 100,
    "batch_size": 128,
    "learning_rate": 1.0,
    "clip_norm": 0.5,
    "model": "mlp",
    "seed": 1,
    "performance": {"device": "cpu", "checkpoint_every": 1000, "report_every": 1000},
}
CHANCE_AT_MOST, LEARNED_AT_LEAST = 0.3, 0.8


PSAC = {"recipe": "psac", "clip_r": 0.05}
FIRST_STEPS: list[tuple[dict[str, Any], Callable[[float], float]]] = [
    ({"recipe": "dpsgd"}, lambda n: min(1.0, 0.3 / n)),
    ({"recipe": "regular"}, lambda n: 1.0),
    (PSAC | {"clip_rule": "psac-paper"}, lambda n: 0.3 / (n + 0.05 / (n + 0.05))),
    (PSAC | {"clip_rule": "psac-code"}, lambda n: 0.3 / (n + 0.05 / n + 0.05)),
]


@pytest.mark.parametrize(("changes", "scale"), FIRST_STEPS)
def test_the_first_step_of_a_run_is_the_one_written_by_hand(
    source: Path, tmp_path: Path, changes: dict[str, Any], scale: Callable[[float], float]
) -> None:
    settings = tiny(source, steps=1, noise_multiplier=0.5, learning_rate=0.7, clip_norm=0.3, **changes)
    key, dataset = Key.from_seed(3), load(parse_train_config(settings).data)
    model = fresh_network(3, dataset.shape)
    start = torch.cat([value.detach().double().flatten() for value in model.parameters()])
    noise = torch.from_numpy(key.normals("noise", 0, count=len(start))) * 0.5 * 0.3
    total = torch.zeros_like(start) if changes["recipe"] == "regular" else noise
    inputs = torch.from_numpy(dataset.train.inputs.astype(np.float32)) / dataset.levels
    for index in poisson_sample(key, 0, records=RECORDS, sample_rate=20 / RECORDS):
        label = torch.tensor([dataset.train.labels[index]])
        loss = torch.nn.functional.cross_entropy(model(inputs[index][None]), label)
        gradient = torch.cat([part.double().flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        total = total + scale(float(gradient.norm())) * gradient
    stored = load_file(train(settings, tmp_path / "run").layout.model)
    trained = torch.cat([stored[name].double().flatten() for name, _ in model.named_parameters()])
    assert torch.allclose(trained, start - 0.7 * total / 20, rtol=0, atol=1e-6)


def test_empty_draws_walk_by_noise_and_momentum_alone(source: Path, tmp_path: Path) -> None:
    """So many declared records that nobody is drawn: two steps of noise, the first of which momentum repeats."""
    settings = tiny(source, records=10**9, delta=1e-12, steps=2, learning_rate=0.7, momentum=0.8, clip_norm=0.3)
    run = train(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (run.layout.private / "diagnostics.jsonl").read_text().splitlines()]
    assert [line["drawn"] for line in lines] == [0, 0]
    key = Key.from_seed(3)
    start = torch.cat([value.detach().double().flatten() for value in fresh_network(3, (4,)).parameters()])
    first, second = (torch.from_numpy(key.normals("noise", step, count=len(start))) * 20 * 0.3 / 20 for step in (0, 1))
    weights = load_file(run.layout.model)
    names = ("1.weight", "1.bias", "3.weight", "3.bias")
    trained = torch.cat([weights[name].double().flatten() for name in names])
    assert torch.allclose(trained, start - 0.7 * (1.8 * first + second), rtol=0, atol=1e-5)


def test_no_noisy_copies_is_dp_sgd_bit_for_bit(source: Path, tmp_path: Path) -> None:
    plain = train(tiny(source), tmp_path / "plain").root
    none = train(tiny(source, recipe="dpcert-gaussian", copies=0), tmp_path / "none").root
    two = train(tiny(source, recipe="dpcert-gaussian", copies=2), tmp_path / "two").root
    assert model_bytes(plain) == model_bytes(none)
    assert model_bytes(plain) != model_bytes(two)


def _accuracy(folder: Path, **changes: Any) -> float:
    return float(train(LEARNING | changes, folder / "run").record["accuracy"]["value"])


def test_overwhelming_noise_gives_chance_accuracy(tmp_path: Path) -> None:
    assert _accuracy(tmp_path, noise_multiplier=1000.0) < CHANCE_AT_MOST


def test_little_noise_learns(tmp_path: Path) -> None:
    assert _accuracy(tmp_path, noise_multiplier=0.6) > LEARNED_AT_LEAST


def test_a_planted_run_without_noise_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silence(self: Key, purpose: str, *counters: int, count: int) -> NDArray[np.float64]:
        return np.zeros(count)

    monkeypatch.setattr(Key, "normals", silence)
    assert _accuracy(tmp_path, noise_multiplier=1000.0) > CHANCE_AT_MOST


def test_regular_training_learns_and_promises_nothing(tmp_path: Path) -> None:
    run = train(LEARNING | {"recipe": "regular", "learning_rate": 0.1, "steps": 200}, tmp_path / "run")
    assert run.record["accuracy"]["value"] > 0.9
    assert run.guarantee.status is Status.NONE
    assert "without a privacy mechanism" in run.guarantee.reason
    assert run.epsilon is None
    assert [line["kind"] for line in ledger_lines(run.root)] == ["open", "close"]
    assert verify_run(run.root).ok


@pytest.mark.parametrize(("recipe", "noise"), [("dpsgd", {"noise_multiplier": 10.0}), ("dpcert-gaussian", {"epsilon": 0.2})])
def test_a_private_run_is_proven_with_the_ledgers_epsilon(
    source: Path, tmp_path: Path, recipe: str, noise: dict[str, float]
) -> None:
    settings = {key: value for key, value in tiny(source, recipe=recipe, seed=None).items() if key != "noise_multiplier"}
    run = train(settings | noise, tmp_path / "run")
    blocks = [line["body"] for line in ledger_lines(run.root) if line["kind"] == "poisson-gaussian"]
    events = [PoissonGaussianEvent(body["sample_rate"], body["noise_multiplier"], body["steps"]) for body in blocks]
    assert run.guarantee.status is Status.PROVEN
    assert dict(run.guarantee.values)["epsilon"] == run.epsilon == round_up(epsilon_pld(events, 1e-4))
    assert run.epsilon <= noise.get("epsilon", np.inf)
    assert verify_run(run.root).ok


def test_a_known_seed_takes_the_promise_away(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source, seed=0), tmp_path / "run")
    assert run.guarantee.status is Status.NONE
    assert run.guarantee.reason == "noise is reproducible from a known seed"
    assert run.epsilon is not None
    assert verify_run(run.root).ok


def test_two_runs_without_a_seed_share_no_noise(source: Path, tmp_path: Path) -> None:
    one, other = (train(tiny(source, seed=None), tmp_path / name).root for name in ("one", "other"))
    assert model_bytes(one) != model_bytes(other)


def _breaks_for_class_two(logits: Tensor, label: Tensor) -> Tensor:
    return mean_cross_entropy(logits, label) * torch.where(label == 2, torch.nan, 1.0)


def test_non_finite_gradients_are_counted_for_the_owner_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "dpsgd", replace(RECIPES["dpsgd"], loss=_breaks_for_class_two))
    root = train(tiny(source, performance={"device": "cpu", "path": "vmap"}), tmp_path / "run").root
    lines = [json.loads(line) for line in (root / "private" / "diagnostics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(6))
    assert all(0 < line["non_finite"] < line["drawn"] for line in lines)
    assert all(bool(torch.isfinite(value).all()) for value in load_file(root / "model.safetensors").values())
    for path in root.iterdir():
        assert path.is_dir() or not any(word in path.read_bytes() for word in (b"non_finite", b"clipped", b"drawn")), path.name


def test_training_that_diverges_says_so(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"diverged(.|\n)*smaller learning_rate"):
        train(tiny(source, learning_rate=1e9, noise_multiplier=1e4, clip_norm=1e30), tmp_path / "run")
    assert run_json(tmp_path / "run")["state"] == "training"


def test_metrics_lie_on_the_test_set_and_on_the_plan(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source), tmp_path / "run")
    lines = [json.loads(line) for line in run.layout.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    assert [line["epoch"] for line in lines] == pytest.approx([3 * 20 / RECORDS, 6 * 20 / RECORDS])
    truth = [round_up(epsilon_pld([PoissonGaussianEvent(20 / RECORDS, 20.0, steps)], 1e-4)) for steps in (3, 6)]
    assert [line["epsilon"] for line in lines] == truth
    assert lines[-1]["test_accuracy"] == run.record["accuracy"]["value"]
