"""Settings: merged in rank, complained about all at once, with a suggestion, before anything is written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import resolved
from recipe_fixtures import source as source
from small_runs import RECORDS, tiny

from twinproof.cli.train import assignments, read_toml
from twinproof.data.load import load
from twinproof.errors import ConfigError
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.noise_layer import NoiseLayerConfig
from twinproof.recipes.recipe import RegulariserConfig, reading
from twinproof.recipes.resolve import plan_of, resolve
from twinproof.recipes.train import train

DIGITS: dict[str, Any] = {"data": {"source": "digits"}}


def test_later_layers_go_before_earlier_ones_and_before_the_recipes_defaults() -> None:
    layers: list[dict[str, Any]] = [
        {**DIGITS, "recipe": "dpcert-gaussian", "delta": 1e-4, "sigma": 0.1, "performance": {"path": "vmap"}},
        {"sigma": 0.2, "copies": 5, "performance": {"physical_batch": 7}},
        {"sigma": 0.3},
    ]
    config = parse_train_config(*layers)
    assert (config.sigma, config.copies, config.delta) == (0.3, 5, 1e-4)
    assert (config.performance.path, config.performance.physical_batch) == ("vmap", 7), "sections are merged, not replaced"


def test_the_default_recipe_is_the_private_and_robust_one() -> None:
    assert parse_train_config(DIGITS).recipe == "dpcert-gaussian"


def test_merging_leaves_the_callers_settings_alone() -> None:
    first = {"data": {"source": "a.csv", "ranges": {"age": [0, 120]}}, "performance": {"path": "vmap"}}
    second = {"data": {"ranges": {"height": [0, 250]}}, "performance": {"physical_batch": 3}}
    before = copy.deepcopy((first, second))
    config = parse_train_config(first, second)
    assert config.data.ranges == {"age": (0.0, 120.0), "height": (0.0, 250.0)}
    assert (first, second) == before


def test_a_file_is_below_sets_which_are_below_flags(tmp_path: Path) -> None:
    toml = tmp_path / "settings.toml"
    toml.write_text('recipe = "dpsgd"\nsteps = 10\nclip_norm = 0.4\nsigma = 0.1\n[data]\nsource = "digits"\n')
    sets = assignments(["steps=20", "clip_norm=0.5", "performance.path=vmap", "model=mlp"])
    config = parse_train_config(read_toml(toml), sets, {"steps": 30})
    assert (config.steps, config.clip_norm, config.sigma) == (30, 0.5, 0.1)
    assert (config.performance.path, config.model, config.data.source) == ("vmap", "mlp", "digits")


def test_all_problems_are_told_at_once() -> None:
    wrong = {
        "data": {"public_fraction": 2, "ranges": "training"},
        "recipe": "dpsgd",
        "clip_norm": -1,
        "batch_size": "many",
        "momentum": 1.0,
        "performance": {"device": "tpu"},
    }
    with pytest.raises(ConfigError) as caught:
        parse_train_config(wrong)
    keys = {"data.source", "data.public_fraction", "data.ranges", "clip_norm", "batch_size", "momentum", "performance.device"}
    assert set(caught.value.where.split(", ")) == keys
    assert all(f"{key}: " in caught.value.wanted for key in keys)
    assert "7 settings" in caught.value.what


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [
        ({"learning_rat": 1}, "learning_rate"),
        ({"noise_multiplyer": 1}, "noise_multiplier"),
        ({"data": {"source": "digits", "labl": "x"}}, "label"),
        ({"performance": {"phisical_batch": 3}}, "physical_batch"),
        ({"recipe": "dpcert-macer", "regulariser": {"macer_gama": 8}}, "macer_gamma"),
        ({"recipe": "pixeldp", "noise_layer": {"attack_bond": 0.1}}, "attack_bound"),
        ({"recipe": "dp-sgd"}, "dpsgd"),
    ],
)
def test_an_unknown_key_brings_a_suggestion(wrong: dict[str, Any], suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{suggestion}'"):
        parse_train_config(DIGITS, wrong)


UNUSABLE: dict[str, tuple[Any, ...]] = {
    "epsilon": (0, -1, float("inf"), float("nan")),
    "delta": (0, 1),
    "noise_multiplier": (0, 1e-9, 1e6),
    "clip_norm": (0,),
    "clip_rule": ("psac",),
    "clip_r": (0,),
    "batch_size": (0,),
    "records": (0,),
    "steps": (0,),
    "epochs": (0,),
    "learning_rate": (-0.1,),
    "schedule": ("stairs",),
    "averaging": (-0.1, 1.0),
    "sigma": (0, -1.0),
    "copies": (-1, 65),
    "width": (0,),
    "prior": ("photographs",),
    "variant": ("proven",),
    "seed": (-1,),
}


@pytest.mark.parametrize("key", UNUSABLE)
def test_an_unusable_value_is_refused_by_name(key: str) -> None:
    for value in UNUSABLE[key]:
        with pytest.raises(ConfigError) as caught:
            parse_train_config(DIGITS, {key: value})
        assert caught.value.where == key
        assert repr(value) in caught.value.got


BOTH = "noise at both places is certified where"
CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("dpsgd", {"epsilon": 1.0, "noise_multiplier": 1.0}, "noise is set twice"),
    ("dpcert-stability", {"regulariser": {"eta": 0.5}}, "does not read every setting(.|\n)*regulariser.eta"),
    ("gaussian", {"regulariser": {"weight": 1.0}}, "does not read every setting"),
    ("stobatch", {"regulariser": {"radius": 0.2}}, "does not read every setting"),
    ("stobatch", {"regulariser": {"attack_size": 1.5}}, "less than or equal to 1"),
    ("dpcert-macer", {"regulariser": {"beta": None}}, "that the recipe reads is missing(.|\n)*regulariser.beta"),
    ("dpcert-macer", {"regulariser": None}, "that the recipe reads is missing"),
    ("dpcert-smoothadv", {"regulariser": {"radius": 0}}, "greater than 0"),
    ("dpcert-smoothadv", {"copies": 0}, "too few noisy copies"),
    ("dpcert-consistency", {"copies": 1}, "too few noisy copies"),
    ("dpcert-gaussian", {"copies": 0, "originals": False}, "too few noisy copies"),
    ("gaussian", {"copies": 0}, "too few noisy copies"),
    ("twinproof", {"copies": 0}, "too few noisy copies"),
    ("pixeldp", {"copies": 0}, "never be seen(.|\n)*at least 1"),
    ("stobatch", {"copies": 0}, "never be seen"),
    *((recipe, {"originals": False}, "cannot do without the original") for recipe in ("dpcert-stability", "psac", "securesgd")),
    *((recipe, {"clip_rule": "psac-paper"}, "clips nothing") for recipe in ("regular", "gaussian")),
    ("gaussian", {"prior": "figures"}, "no learned weights to start from"),
    *(
        (recipe, {"variant": "published"}, r"no published variant(.|\n)*hgm-pixeldp or pixeldp")
        for recipe in ("dpsgd", "gaussian")
    ),
    ("securesgd", {"averaging": 0.5}, r"sized for the weights of the step(.|\n)*leave averaging out"),
    ("pixeldp", {"sigma": 0.25}, r"sigma is set twice(.|\n)*noise_layer\.attack_bound"),
    ("stobatch", {"sigma": 0.5}, "sigma is set twice"),
    ("pixeldp", {"noise_layer": None}, r"noise layer disagree(.|\n)*no noise layer, with pixeldp"),
    ("dpsgd", {"noise_layer": {"attack_bound": 0.1}}, r"noise layer disagree(.|\n)*a noise layer, with dpsgd"),
    *(
        (recipe, {"noise_layer": noise}, message)
        for recipe, noise, message in (
            ("pixeldp", {"epsilon_r": 0}, r"noise_layer\.epsilon_r(.|\n)*greater than 0"),
            ("pixeldp", {"delta_r": 0}, r"noise_layer\.delta_r(.|\n)*greater than 0"),
            ("pixeldp", {"delta_r": 1}, r"noise_layer\.delta_r(.|\n)*less than 1"),
            ("pixeldp", {"epsilon_r": 1.5}, r"proven for epsilon up to 1(.|\n)*epsilon_r = 1\.5(.|\n)*analytic"),
            ("pixeldp", {"mechanism": "laplace"}, r"law and its calibration disagree(.|\n)*law = gaussian"),
            ("pixeldp", {"attack_bound": 100}, r"cannot be used(.|\n)*sigma = 253(.|\n)*smaller attack_bound"),
            ("hgm-pixeldp", {"law": "laplace"}, r"law and its calibration disagree(.|\n)*mechanism = heterogeneous"),
            ("securesgd-agm", {"redistribution": "learned"}, r"every output the same noise(.|\n)*heterogeneous"),
            ("securesgd", {"public_data": "digits"}, r"public data are named(.|\n)*redistribution public"),
            ("securesgd", {"redistribution": "training", "r_clip": 1e-40}, r"noise_layer\.r_clip(.|\n)*greater than or equal"),
            ("stobatch", {"law": "gaussian", "mechanism": "analytic"}, BOTH),
            ("stobatch", {"redistribution": "learned"}, BOTH),
            ("stobatch", {"hidden_share": 0.0}, "greater than 0"),
            ("stobatch", {"place": "everywhere"}, "a setting cannot be used|settings cannot be used"),
            ("stobatch", {"place": "input"}, "needs both of its noises"),
        )
    ),
]


@pytest.mark.parametrize(("recipe", "changes", "message"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused_and_nothing_is_written(
    recipe: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train({**DIGITS, "recipe": recipe, "delta": 1e-4, "steps": 1, **changes}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_made_by_hand_are_checked_too() -> None:
    noise = NoiseLayerConfig(mechanism="classic", epsilon_r=0.5)
    config = parse_train_config(DIGITS, {"recipe": "pixeldp"}).model_copy(update={"noise_layer": noise, "sigma": 0.2})
    with pytest.raises(ConfigError, match="sigma is set twice"):
        resolve(config, load("digits"))
    with pytest.raises(ConfigError, match="is missing"):
        reading(None, "weight")
    with pytest.raises(ConfigError, match=r"regulariser\.eta"):
        reading(RegulariserConfig(weight=1.0), "eta")


def _resolved(source: Path, **changes: Any) -> ResolvedConfig:
    return resolved(tiny(source, **changes))[0]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"delta": 1 / RECORDS}, True),
        ({"delta": 0.99 / RECORDS}, False),
        ({"delta": 0.99 / RECORDS, "records": RECORDS + 1}, True),
        ({"delta": 1 / RECORDS, "recipe": "regular"}, False),
    ],
)
def test_delta_must_lie_below_one_over_the_declared_records(source: Path, changes: dict[str, Any], refused: bool) -> None:
    if refused:
        with pytest.raises(ConfigError, match="delta is too large"):
            _resolved(source, **changes)
    else:
        _resolved(source, **changes)


@pytest.mark.parametrize(
    ("batch", "records", "refused"), [(90, None, False), (91, None, True), (91, 91, False), (50, 49, True)]
)
def test_a_batch_may_not_exceed_the_declared_records(source: Path, batch: int, records: int | None, refused: bool) -> None:
    if refused:
        with pytest.raises(ConfigError, match="batch is larger"):
            _resolved(source, batch_size=batch, records=records)
    else:
        assert plan_of(_resolved(source, batch_size=batch, records=records)).sample_rate == batch / (records or RECORDS)


def test_the_plan_follows_from_declared_numbers(source: Path) -> None:
    plan = plan_of(_resolved(source, records=200, steps=None, epochs=3, clip_norm=0.7))
    assert (plan.sample_rate, plan.divisor, plan.clip_norm, plan.delta) == (0.1, 20.0, 0.7, 1e-4)
    assert plan.steps == 30


def test_there_is_no_plan_without_a_private_recipe(source: Path) -> None:
    with pytest.raises(ConfigError, match="no privacy plan without noise"):
        plan_of(_resolved(source, recipe="regular"))


@pytest.mark.parametrize(("records", "batch"), [(90, 90), (300, 256), (60_000, 2000)])
def test_an_open_batch_follows_from_the_declared_records_alone(source: Path, records: int, batch: int) -> None:
    resolved = _resolved(source, batch_size=None, records=records, noise_multiplier=1.0, epsilon=None, delta=1e-6)
    assert (resolved.batch_size, resolved.sample_rate) == (batch, batch / records)


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    config = parse_train_config(DIGITS)
    with pytest.raises(ValueError, match="frozen"):
        config.delta = 0.5
