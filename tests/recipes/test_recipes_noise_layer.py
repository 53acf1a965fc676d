"""The settings of a noise layer: each recipe's defaults, the sigma that follows, and one clear error for each mistake."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from small_runs import blobs, run_json, tiny
from torch import nn

from twinproof.cli.main import run as run_command
from twinproof.cli.train import assignments
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import RunError, UserError
from twinproof.privacy.mechanisms import (
    analytic_gaussian_sigma,
    classic_gaussian_sigma,
    extended_gaussian_sigma,
    gaussian_delta,
)
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.noise_layer import NoiseLayerConfig, settled_noise
from twinproof.recipes.resolve import DEFAULT_SIGMA, resolve
from twinproof.recipes.train import train
from twinproof_papers.published.formulas import paper_extended_sigma

NOISY = ("pixeldp", "hgm-pixeldp", "securesgd", "securesgd-agm")
MNIST = (1, 28, 28)


def _settings(recipe: str, **noise: Any) -> dict[str, Any]:
    return {"data": {"source": "digits"}, "recipe": recipe} | ({"noise_layer": noise} if noise else {})


def _noise(recipe: str, **noise: Any) -> NoiseLayerConfig:
    config = parse_train_config(_settings(recipe, **noise)).noise_layer
    assert config is not None
    return config


def test_one_changed_setting_leaves_the_recipes_other_ones() -> None:
    noise = _noise("pixeldp", attack_bound=0.05)
    assert (noise.attack_bound, noise.delta_r, noise.mechanism) == (0.05, 0.05, "classic")


def _digits() -> Dataset:
    return load("digits")


SIGMAS: list[tuple[str, dict[str, Any], float]] = [
    ("pixeldp", {}, classic_gaussian_sigma(1.0, 0.05) * 0.1),
    ("pixeldp", {"attack_bound": 0.3, "epsilon_r": 0.5}, classic_gaussian_sigma(0.5, 0.05) * 0.3),
    ("pixeldp", {"law": "laplace", "mechanism": "laplace", "epsilon_r": 2.0, "weights": "project"}, 0.5 * 0.1),
    ("hgm-pixeldp", {}, extended_gaussian_sigma(4.0, 1e-5) * (0.1 / 28)),
    ("hgm-pixeldp", {"mechanism": "heterogeneous-analytic"}, analytic_gaussian_sigma(4.0, 1e-5) * (0.1 / 28)),
    ("securesgd-agm", {"attack_bound": 0.01}, analytic_gaussian_sigma(4.0, 1e-5) * 0.01),
]


@pytest.mark.parametrize(("recipe", "noise", "wanted"), SIGMAS)
def test_sigma_is_the_mechanisms_at_sensitivity_one_times_the_attack_bound(
    recipe: str, noise: dict[str, Any], wanted: float
) -> None:
    settled, sigma = settled_noise(_noise(recipe, **noise), MNIST)
    assert sigma == pytest.approx(wanted, rel=1e-12)
    assert settled.attack_bound is not None
    assert settled.attack_bound > 0


@pytest.mark.parametrize("recipe", NOISY)
def test_the_layer_keeps_its_robustness_mechanisms_promise(recipe: str) -> None:
    """A layer of norm 1 moves by at most the attack bound: (epsilon_r, delta_r) by the exact profile; with less noise not."""
    noise = _noise(recipe)
    settled, sigma = settled_noise(noise, MNIST)
    assert settled.attack_bound is not None
    assert gaussian_delta(noise.epsilon_r, sigma, settled.attack_bound) <= noise.delta_r
    tight = settled_noise(_noise("securesgd-agm"), MNIST)
    assert gaussian_delta(4.0, tight[1] * 0.999, tight[0].attack_bound or 0) > 1e-5, "forgetting a part of sigma is seen"


def test_the_bound_in_linf_shrinks_with_the_root_of_the_inputs_size() -> None:
    small, large = (settled_noise(_noise("securesgd"), shape)[1] for shape in ((1, 8, 8), MNIST))
    assert small / large == pytest.approx(math.sqrt(784 / 64))


def test_sigma_without_a_noise_layer_is_as_before() -> None:
    config = parse_train_config(_settings("dpsgd"))
    assert config.sigma is None
    assert resolve(config.model_copy(update={"delta": 1e-4, "noise_multiplier": 5.0}), _digits()).sigma == DEFAULT_SIGMA


@pytest.mark.parametrize(
    ("data", "message"), [("nowhere", "no data set has this name"), ("breast-cancer", r"public data do not fit(.|\n)*test set")]
)
def test_public_data_that_cannot_be_used_are_refused(tmp_path: Path, data: str, message: str) -> None:
    settings = _settings("securesgd", redistribution="public", public_data=data) | {"delta": 1e-4, "noise_multiplier": 20.0}
    with pytest.raises(UserError, match=message):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Squares(nn.Module):
    """A first layer that is not linear."""

    def forward(self, inputs: Any) -> Any:
        return inputs.flatten(1).square()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(Squares(), nn.Linear(4, 3)), "a layer that is not linear"),
        (Squares(), "between the modules of a Sequential"),
    ],
)
def test_a_network_without_a_linear_first_layer_is_refused(
    network: nn.Module, message: str, source: Path, tmp_path: Path
) -> None:
    settings = tiny(source, recipe="securesgd")
    with pytest.raises(UserError, match=message):
        train(settings, tmp_path / "run", network=network)
    assert not (tmp_path / "run").exists()


def test_a_named_network_that_begins_otherwise_is_refused(tmp_path: Path) -> None:
    settings = _settings("pixeldp") | {"model": "small-vit", "steps": 1}
    with pytest.raises(UserError, match=r"not linear|Sequential"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_takes_the_layers_settings(capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path) -> None:
    sets = ["noise_layer.attack_bound=0.05", "variant=published", "steps=2", "batch_size=20", "data.ranges={'*'=[0.0,1.0]}"]
    command = ["train", "--data", str(source), "--recipe", "hgm-pixeldp", "--out", str(tmp_path / "run"), "--json"]
    command += [part for item in sets for part in ("--set", item)]
    with pytest.raises(SystemExit) as ended:
        run_command(command)
    assert ended.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["status"] == "none"
    config = run_json(tmp_path / "run")["config"]
    assert (config["noise_layer"]["attack_bound"], config["variant"]) == (0.05, "published")
    assert config["sigma"] == paper_extended_sigma(4.0, 1e-5) * 0.05
    assert assignments(sets[:2]) == {"noise_layer": {"attack_bound": 0.05}, "variant": "published"}


def test_a_finished_run_agrees_with_the_settings_it_was_started_with(source: Path, tmp_path: Path) -> None:
    settings = tiny(source, recipe="securesgd", steps=1)
    run = train(settings, tmp_path / "run")
    assert train(settings, tmp_path / "run", resume=True).model_sha256 == run.model_sha256
    other = settings | {"noise_layer": {"attack_bound": 0.3}}
    with pytest.raises(RunError, match=r"not the settings(.|\n)*noise_layer"):
        train(other, tmp_path / "run", resume=True)


def test_sigma_is_written_down_with_its_promise(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source, recipe="securesgd", steps=1), tmp_path / "run")
    sigma = extended_gaussian_sigma(4.0, 1e-5) * 0.1 / math.sqrt(blobs()["x_train"].shape[1])
    assert run.record["config"]["sigma"] == pytest.approx(sigma, rel=1e-12)
    assert run.robustness == {}, "before it is certified"
