"""Every recipe: its defaults, its copies, the guarantee of its runs, and that it trains in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from small_runs import announced_steps, ledger_lines, model_bytes, tiny

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Sampling
from twinproof.data.load import load
from twinproof.evaluation.certified import summarize
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.noise_placement import RedistributionKind
from twinproof.recipes.config import ResolvedConfig, parse_train_config, with_section
from twinproof.recipes.registry import RECIPES, find_recipe
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.training.passes import GaussianCopies, Repeats

DIGITS: dict[str, Any] = {"data": {"source": "digits"}, "model": "mlp", "seed": 1}
FAST = {"stobatch": {"regulariser": {"attack_steps": 1}}}
PSAC = {"copies": 0, "clip_rule": "psac-paper", "clip_r": 0.01}
HGM = {"norm": "linf", "epsilon_r": 4.0, "delta_r": 1e-5}
DEFAULTS: list[tuple[str, dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]] = [
    ("regular", {"copies": 0, "learning_rate": 0.05}, None, None),
    ("gaussian", {"copies": 1, "originals": False, "learning_rate": 0.05, "schedule": "cosine", "averaging": 0}, None, None),
    ("dpsgd", {"copies": 0, "learning_rate": 2.0}, None, None),
    ("psac", PSAC, None, None),
    ("dpcert-gaussian", {"copies": 2, "learning_rate": 2.0, "originals": True, "clip_rule": "flat"}, None, None),
    ("dpcert-stability", {"copies": 2}, {"weight": 0.1}, None),
    ("dpcert-consistency", {"copies": 2}, {"weight": 0.5, "eta": 0.5}, None),
    ("dpcert-macer", {"copies": 2}, {"weight": 16.0, "beta": 16.0, "macer_gamma": 8.0}, None),
    (
        "dpcert-smoothadv",
        {"copies": 2},
        {"radius": 0.25, "attack_steps": 2, "warm_up_epochs": 10, "weight": 0.0, "eta": 0.0},
        None,
    ),
    (
        "twinproof",
        {"copies": 8, "width": 2, "learning_rate": 2.0, "epochs": 40, "averaging": 0.99, "schedule": "constant"},
        {"weight": 0.0, "eta": 0.0},
        None,
    ),
    ("interval", {"copies": 0, "learning_rate": 8.0, "momentum": 0.9, "schedule": "cosine", "clip_norm": 0.1}, None, None),
    ("pixeldp", {"copies": 4}, None, {"norm": "l2", "delta_r": 0.05, "mechanism": "classic", "weights": "parseval"}),
    ("hgm-pixeldp", {"copies": 4}, None, HGM | {"redistribution": "training"}),
    ("securesgd", {"copies": 4}, None, HGM | {"mechanism": "heterogeneous", "redistribution": "learned"}),
    ("securesgd-agm", {"copies": 4}, None, HGM | {"mechanism": "analytic", "redistribution": "uniform"}),
]


@pytest.mark.parametrize(("recipe", "plain", "regulariser", "noise"), DEFAULTS, ids=[row[0] for row in DEFAULTS])
def test_settings_begin_with_the_documented_values(
    recipe: str, plain: dict[str, Any], regulariser: dict[str, Any] | None, noise: dict[str, Any] | None
) -> None:
    config = parse_train_config({"data": {"source": "digits"}, "recipe": recipe})
    assert config.spec is find_recipe(recipe)
    assert {name: getattr(config, name) for name in plain} == plain
    found = None if config.regulariser is None else config.regulariser.model_dump(exclude_none=True)
    assert found == regulariser
    assert (config.noise_layer is None) == (noise is None)
    for name, value in (noise or {}).items():
        assert getattr(config.noise_layer, name) == value
    if regulariser:
        name = next(iter(regulariser))
        changed = parse_train_config({"data": {"source": "digits"}, "recipe": recipe, "regulariser": {name: 0.3}}).regulariser
        assert changed is not None
        assert changed.model_dump(exclude_none=True) == {**regulariser, name: 0.3}, "the others stay"


def _config(recipe: str, **changes: Any) -> ResolvedConfig:
    return resolve(
        parse_train_config(DIGITS | {"recipe": recipe, "delta": 1e-4, "noise_multiplier": 5.0} | changes), load("digits")
    )


@pytest.mark.parametrize(
    ("recipe", "changes", "wanted"),
    [
        ("regular", {}, Repeats()),
        ("dpsgd", {}, Repeats()),
        ("gaussian", {"sigma": 0.25}, GaussianCopies(1, 0.25, original=False)),
        ("gaussian", {"sigma": 1.0, "copies": 3}, GaussianCopies(3, 1.0, original=False)),
        ("gaussian", {"originals": True, "copies": 0}, GaussianCopies(0, 0.25, original=True)),
        ("dpcert-gaussian", {"sigma": 0.4, "copies": 5}, GaussianCopies(5, 0.4)),
        ("dpcert-gaussian", {"originals": False, "copies": 3}, GaussianCopies(3, 0.25, original=False)),
        ("twinproof", {"sigma": 0.4, "copies": 3}, GaussianCopies(3, 0.4)),
        ("securesgd", {}, Repeats(4)),
    ],
)
def test_copies_have_the_noise_and_number_of_the_settings(recipe: str, changes: dict[str, Any], wanted: object) -> None:
    assert RECIPES[recipe].augmentation(_config(recipe, **changes)) == wanted


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_has_the_status_of_its_recipe_and_verifies(source: Path, tmp_path: Path, recipe: str) -> None:
    spec = RECIPES[recipe]
    run = train(tiny(source, recipe=recipe, seed=None, **FAST.get(recipe, {})), tmp_path / "run")
    assert run.guarantee.status is spec.privacy_status is (Status.PROVEN if spec.private else Status.NONE)
    assert (run.epsilon is not None) == spec.private
    assert (announced_steps(run.root) >= 6) == spec.private
    if not spec.private:
        assert "without a privacy mechanism" in run.guarantee.reason
        assert (run.record["privacy"], run.record["config"]["epsilon"]) == (None, None), "no budget is written down"
        assert [line["kind"] for line in ledger_lines(run.root)] == ["open", "close"]
    verification = verify_run(run.root)
    assert verification.ok, [str(problem) for problem in verification.problems]
    stored = with_section(ResolvedConfig, recipe, None).model_validate(run.record["config"])
    given = parse_train_config(tiny(source, recipe=recipe, **FAST.get(recipe, {})))
    assert stored.regulariser == given.regulariser
    if stored.noise_layer is not None and stored.noise_layer.redistribution is RedistributionKind.TRAINING:
        purposes = [line["body"].get("purpose") for line in ledger_lines(run.root)]
        assert ("redistribution" in purposes) == spec.private


def test_recipes_of_one_family_train_differently(source: Path, tmp_path: Path) -> None:
    """DP-CERT's terms and attacks, PSAC's clipping and DP-SGD, under one key."""
    names = [name for name in RECIPES if name.startswith("dpcert")] + ["dpsgd", "psac"]
    models = {name: model_bytes(train(tiny(source, recipe=name), tmp_path / name).root) for name in names}
    assert len(set(models.values())) == len(names)


def test_noise_in_training_is_what_makes_radii(tmp_path: Path) -> None:
    """Planted: the same training that forgets the noise certifies less."""
    radii = []
    for recipe in ("gaussian", "regular"):
        settings = DIGITS | {"recipe": recipe, "sigma": 1.0, "epochs": 15, "schedule": "cosine"}
        run = train(settings, tmp_path / recipe)
        certified = tp.certify(run, load("digits"), sampling=Sampling(20, 200, 0.001), limit=80, key=Key.from_seed(3))
        assert certified.settings.noise.sigma == 1.0
        radii.append(summarize(certified.certificates, certified.settings, radii=(0.0,)).as_dict()["acr"])
    assert radii[0] > 1.05 * radii[1]
