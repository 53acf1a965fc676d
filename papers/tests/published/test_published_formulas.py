"""The printed noise formulas: where they fail by the exact profile, and the runs that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_oracles import exact_gaussian_delta
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from small_runs import run_json

from twinproof.cli.main import run as run_command
from twinproof.cli.train import assignments
from twinproof.errors import ConfigError
from twinproof.layers.models.with_noise import RedistributionKind
from twinproof.privacy.mechanisms.classic_gaussian import classic_gaussian_sigma
from twinproof.privacy.mechanisms.extended_gaussian import extended_gaussian_sigma
from twinproof.privacy.mechanisms.heterogeneous_gaussian import HeterogeneousGaussian
from twinproof.privacy.mechanisms.redistribution import Redistribution
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.noise_layer import NoiseLayerConfig, settled_noise
from twinproof_papers.published.formulas import paper_classic_sigma, paper_extended_sigma, paper_heterogeneous_deviations
from twinproof_papers.published.variants import _DEVIATIONS


@pytest.mark.parametrize(("epsilon", "delta", "exact"), [(16, 1e-5, 3.363e-4), (8, 1e-3, 1.313e-3), (16, 1e-3, 3.199e-2)])
def test_the_classic_formula_breaks_its_promise_at_large_epsilon(epsilon: float, delta: float, exact: float) -> None:
    found = exact_gaussian_delta(epsilon, paper_classic_sigma(epsilon, delta))
    assert found == pytest.approx(exact, rel=5e-4)
    assert found > delta


@pytest.mark.parametrize(
    ("delta", "last"), [(1e-3, 7.463474370), (1e-5, 8.419771302), (1e-6, 8.782091752), (1e-9, 9.623657134)]
)
def test_where_the_classic_formula_stops_being_private(delta: float, last: float) -> None:
    assert exact_gaussian_delta(last - 1e-6, paper_classic_sigma(last - 1e-6, delta)) < delta
    assert exact_gaussian_delta(last + 1e-6, paper_classic_sigma(last + 1e-6, delta)) > delta


def test_the_classic_formula_is_the_sound_one_up_to_epsilon_one() -> None:
    assert paper_classic_sigma(0.7, 1e-5, 2.0) == pytest.approx(classic_gaussian_sigma(0.7, 1e-5, 2.0), rel=1e-13)


def test_the_misprint_breaks_its_promise_and_the_proof_does_not() -> None:
    assert exact_gaussian_delta(1000, paper_extended_sigma(1000, 0.45)) / 0.45 == pytest.approx(1.068, abs=5e-4)
    assert exact_gaussian_delta(1000, extended_gaussian_sigma(1000, 0.45)) / 0.45 < 0.63
    assert exact_gaussian_delta(1000, paper_extended_sigma(1000, 0.44)) < 0.44
    assert paper_extended_sigma(1, 1e-5) < extended_gaussian_sigma(1, 1e-5)
    with pytest.raises(ConfigError, match="the printed formula has no value"):
        paper_extended_sigma(1, 0.46)


@pytest.mark.parametrize(("shares", "exact"), [((0.1, 0.9), 0.14005), ((0.3, 0.7), 1.6028e-4)])
def test_forgetting_the_root_breaks_the_promise_for_the_quietest_output(shares: tuple[float, float], exact: float) -> None:
    """One output moves as far as the sensitivity allows; delta 1e-5 was promised."""
    epsilon, delta = 8.0, 1e-5
    mechanism = HeterogeneousGaussian.for_target(epsilon, delta, redistribution=Redistribution(shares))
    change = mechanism.redistribution.scales()[0]
    wrong = paper_heterogeneous_deviations(mechanism.sigma, mechanism.redistribution)[0]
    assert exact_gaussian_delta(epsilon, float(wrong / change)) == pytest.approx(exact, rel=1e-4)
    assert exact_gaussian_delta(epsilon, float(mechanism.deviations()[0] / change)) < delta


def test_for_equal_shares_nothing_is_forgotten() -> None:
    found = paper_heterogeneous_deviations(2.0, Redistribution.uniform(5))
    assert found == pytest.approx(np.full(5, 2.0))


MNIST = (1, 28, 28)


def _settings(recipe: str, **noise: Any) -> dict[str, Any]:
    return {"data": {"source": "digits"}, "recipe": recipe} | ({"noise_layer": noise} if noise else {})


def _noise(recipe: str, **noise: Any) -> NoiseLayerConfig:
    config = parse_train_config(_settings(recipe, **noise)).noise_layer
    assert config is not None
    return config


def test_the_published_variant_uses_the_printed_formulas() -> None:
    classic = settled_noise(_noise("pixeldp", epsilon_r=0.5), MNIST, _DEVIATIONS)[1]
    assert classic == paper_classic_sigma(0.5, 0.05) * 0.1
    config = parse_train_config(_settings("pixeldp", epsilon_r=4.0) | {"variant": "published"})
    assert config.noise_layer is not None
    assert config.noise_layer.epsilon_r == 4.0, "beyond the theorem, as in the program"
    printed = settled_noise(_noise("hgm-pixeldp"), MNIST, _DEVIATIONS)[1]
    assert printed == paper_extended_sigma(4.0, 1e-5) * (0.1 / 28)
    assert printed < settled_noise(_noise("hgm-pixeldp"), MNIST)[1]


def test_published_secure_sgd_takes_r_from_the_training_records() -> None:
    settings = _settings("securesgd", attack_bound=0.05) | {"variant": "published"}
    noise = parse_train_config(settings).noise_layer
    assert noise is not None
    assert (noise.redistribution, noise.attack_bound) == (RedistributionKind.TRAINING, 0.05)


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
