"""Recipes with a noise layer as a whole: they learn, are certified in their norm, verify, and keep layer and noise in step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import tiny
from torch import Tensor, nn

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Sampling
from twinproof.data.load import load
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.noise import silenced
from twinproof.layers.noise_constraint import Constraint
from twinproof.layers.noise_placement import split_at_noise
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.plan import PrivateExecution
from twinproof.recipes import train as train_module
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data
from twinproof.training.loop import load_checkpoint, save_checkpoint

DIGITS: dict[str, Any] = {
    "data": {"source": "digits"},
    "delta": 1e-4,
    "model": "mlp",
    "steps": 80,
    "seed": 1,
    "performance": {"device": "cpu", "checkpoint_every": 1000, "report_every": 1000},
}
LITTLE_NOISE = {"noise_multiplier": 0.7, "batch_size": 128}
# Recipe, further settings, least accuracy, and the norm that it is certified in.
LEARNED: list[tuple[str, dict[str, Any], float, str]] = [
    ("pixeldp", {}, 0.85, "l2"),
    ("pixeldp", {"noise_layer": {"place": "input", "attack_bound": 0.05, "weights": "project"}}, 0.85, "l2"),
    ("pixeldp", {"noise_layer": {"law": "laplace", "mechanism": "laplace", "norm": "l1", "weights": "measure"}}, 0.85, "l1"),
    ("hgm-pixeldp", {}, 0.85, "linf"),
    ("hgm-pixeldp", {"noise_layer": {"redistribution": "random"}}, 0.85, "linf"),
    ("securesgd", LITTLE_NOISE, 0.7, "linf"),
    ("hgm-pixeldp", {"noise_layer": {"place": "input", "redistribution": "public"}}, 0.85, "linf"),
    ("hgm-pixeldp", {"noise_layer": {"place": "input", "redistribution": "random", "norm": "l2"}}, 0.85, "l2"),
    ("securesgd", LITTLE_NOISE | {"noise_layer": {"place": "input"}}, 0.7, "linf"),
    ("securesgd", LITTLE_NOISE | {"noise_layer": {"place": "input", "redistribution": "training"}}, 0.7, "linf"),
    ("adlm", LITTLE_NOISE | {"noise_layer": {"place": "input"}}, 0.7, "l1"),
    ("securesgd-agm", LITTLE_NOISE | {"noise_layer": {"norm": "l1", "attack_bound": 0.1}}, 0.7, "l1"),
]


@pytest.mark.parametrize(("recipe", "changes", "least", "norm"), LEARNED)
def test_a_recipe_learns_the_digits_and_is_certified_in_its_norm(
    tmp_path: Path, recipe: str, changes: dict[str, Any], least: float, norm: str
) -> None:
    run = train(DIGITS | {"recipe": recipe} | changes, tmp_path / "run")
    assert run.record["accuracy"]["value"] >= least
    made = tp.certify(run, load("digits"), sampling=Sampling(20, 200), limit=24)
    assert made.settings.method.norm == norm
    assert sum(certificate.correct and certificate.radius > 0 for certificate in made.certificates) >= 8
    assert [one.status for one in Run.open(run.root).robustness.values()] == [Status.PROVEN]
    verification = verify_run(run.root)
    assert verification.ok, [str(problem) for problem in verification.problems]


def test_the_published_variant_of_a_sound_privacy_claim_is_called_published(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source, recipe="securesgd-agm", seed=None, variant="published"), tmp_path / "run")
    assert run.guarantee.status is Status.PUBLISHED
    assert verify_run(run.root).ok


PROPORTION: list[tuple[str, str]] = [("measure", "linf"), ("project", "linf"), ("parseval", "l2"), ("measure", "l1")]


def _ratio(root: Path) -> float:
    """The deviation per unit of the layer's norm, by the bound that certificates use."""
    run = Run.open(root)
    split = split_at_noise(run.model())
    assert split is not None
    assert split.before is not None
    norm = run.record["config"]["noise_layer"]["norm"]
    bound = operator_norm(split.before, (4,), source=norm, target="l2", scale=split.noise.spread.least_scales())
    return float(split.noise.deviation) / bound.value / float(run.record["config"]["sigma"])


@pytest.mark.parametrize(("rule", "norm"), PROPORTION)
def test_the_released_layer_is_in_proportion_to_its_noise(source: Path, tmp_path: Path, rule: str, norm: str) -> None:
    settings = tiny(source, recipe="securesgd", noise_layer={"weights": rule, "norm": norm}, learning_rate=2.0)
    assert 0.99 < _ratio(train(settings, tmp_path / "run").root) < 1.3


def test_a_planted_run_that_forgets_the_constraint_is_caught(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "constraint_of", lambda config, shape: None)
    settings = tiny(source, recipe="securesgd", noise_layer={"norm": "linf"}, learning_rate=2.0)
    assert _ratio(train(settings, tmp_path / "run").root) < 0.9


def test_the_constraint_comes_before_the_first_step_and_before_every_checkpoint(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    apply = Constraint.apply

    def held(self: Constraint, network: nn.Module) -> None:
        order.append("hold")
        apply(self, network)

    def saved(*arguments: Any, **named: Any) -> None:
        order.append("save")
        save_checkpoint(*arguments, **named)

    monkeypatch.setattr(Constraint, "apply", held)
    monkeypatch.setattr(train_module, "save_checkpoint", saved)
    train(tiny(source, recipe="securesgd", steps=4), tmp_path / "run")
    trial, first = order[:2]
    assert (trial, first) == ("hold", "hold"), "tried before anything is written, then before the first step"
    assert order[2:] == ["hold", "hold", "save", "hold", "save", "hold", "save"], "after 2 and 4, and 3 as reported"


def _silent(self: Key, purpose: str, *counters: int, count: int) -> NDArray[np.float64]:
    return np.zeros(count)


def _update_norm(source: Path, folder: Path) -> tuple[float, float]:
    """How far one step without noise moves all weights together, and the learned shares alone."""
    settings = tiny(source, recipe="securesgd", steps=1, batch_size=20, learning_rate=1.0, clip_norm=0.01)
    settings["noise_layer"] = {"redistribution": "learned"}
    trained = load_file(train(settings, folder / "moved").layout.model)
    still = load_file(train(settings | {"learning_rate": 0}, folder / "still").layout.model)
    moved = {name: trained[name] - still[name] for name in trained if name != "noise.deviation"}
    return float(torch.cat([part.flatten() for part in moved.values()]).norm()), float(moved["noise.spread.log_shares"].norm())


def test_learned_shares_move_within_the_one_clip_of_all_weights(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Key, "normals", _silent)
    everything, shares = _update_norm(source, tmp_path)
    assert 0 < shares < everything <= _most(tmp_path)


def _most(folder: Path) -> float:
    """Every drawn record at the clipping norm, over the divisor."""
    (line,) = (folder / "moved/private/diagnostics.jsonl").read_text().splitlines()
    return float(json.loads(line)["drawn"] * 0.01 / 20)


def test_a_planted_step_without_the_clip_is_caught(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Key, "normals", _silent)
    monkeypatch.setattr(PrivateExecution, "clip_weights", lambda self, squared: torch.ones_like(squared, dtype=torch.float64))
    assert _update_norm(source, tmp_path)[0] > _most(tmp_path)


def own_network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def test_an_own_network_gets_its_noise_on_a_copy(source: Path, tmp_path: Path) -> None:
    network = own_network()
    before = [value.clone() for value in network.parameters()]
    run = train(tiny(source, recipe="securesgd", seed=None), tmp_path / "run", network=network)
    assert all(torch.equal(now, then) for now, then in zip(network.parameters(), before, strict=True))
    assert [name for name, _ in network.named_children()] == ["0", "1", "2"], "the caller's network has no noise"
    model = Run.open(run.root, own_network()).model()
    assert [name for name, _ in model.named_children()] == ["0", "noise", "1", "2"]
    made = tp.certify(Run.open(run.root, own_network()), load_run_data(run), sampling=Sampling(10, 50), limit=3)
    assert made.settings.method.norm == "linf"
    assert verify_run(run.root, network=own_network()).ok


def _outputs(model: nn.Module) -> Tensor:
    inputs = torch.linspace(0, 1, 40).view(10, 4)
    with torch.no_grad(), silenced(model):
        outputs: Tensor = model(inputs)
    return outputs


SHARES = [("securesgd", kind) for kind in ("uniform", "random", "public", "training", "learned")]


@pytest.mark.parametrize(("recipe", "kind"), [*SHARES, ("hgm-pixeldp", "training")])
def test_a_run_killed_between_checkpoints_goes_on_to_the_same_bits(
    source: Path, tmp_path: Path, recipe: str, kind: str
) -> None:
    settings = tiny(source, recipe=recipe, noise_layer={"redistribution": kind})
    whole = train(settings, tmp_path / "whole")
    interrupt(settings, tmp_path / "run", steps=3)
    resumed = train(None, tmp_path / "run", resume=True)
    assert resumed.layout.model.read_bytes() == whole.layout.model.read_bytes()
    assert torch.equal(_outputs(resumed.model()), _outputs(whole.model()))
    assert resumed.layout.ledger.read_bytes() == whole.layout.ledger.read_bytes(), "nothing is paid twice"


def test_a_planted_resumption_that_holds_the_layer_again_is_caught(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Projection is not idempotent to the bit once r or the weights are read back: the state is the checkpoint's alone."""
    settings = tiny(source, recipe="securesgd", noise_layer={"weights": "parseval", "norm": "l2"})
    whole = train(settings, tmp_path / "whole")
    interrupt(settings, tmp_path / "run", steps=3)

    def held_again(private: Path, model: nn.Module, optimizer: Any, **named: Any) -> int:
        step = load_checkpoint(private, model, optimizer, **named)
        Constraint("parseval", "l2", "gaussian", 0.1).apply(model)  # type: ignore[arg-type]
        return step

    monkeypatch.setattr(train_module, "load_checkpoint", held_again)
    assert train(None, tmp_path / "run", resume=True).model_sha256 != whole.model_sha256
