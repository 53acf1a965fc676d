"""Settings: merged in rank, complained about all at once, with a suggestion, before anything is written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import source as source
from small_runs import RECORDS, tiny

from twinproof.cli.train import assignments, read_toml
from twinproof.data.load import load
from twinproof.errors import ConfigError
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.resolve import plan_of, resolve

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


@pytest.mark.parametrize(("recipe", "copies", "rate"), [("dpsgd", 0, 2.0), ("dpcert-gaussian", 2, 2.0), ("regular", 0, 0.05)])
def test_what_nobody_says_comes_from_the_recipe(recipe: str, copies: int, rate: float) -> None:
    config = parse_train_config(DIGITS, {"recipe": recipe})
    assert (config.copies, config.learning_rate) == (copies, rate)


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
    keys = {
        "data.source",
        "data.public_fraction",
        "data.ranges",
        "clip_norm",
        "batch_size",
        "momentum",
        "performance.device",
    }
    assert set(caught.value.where.split(", ")) == keys
    assert all(f"{key}: " in caught.value.wanted for key in keys)
    assert "7 settings" in caught.value.what


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"learning_rat": 1}, "'learning_rate'"),
    ({"noise_multiplyer": 1}, "'noise_multiplier'"),
    ({"data": {"source": "digits", "labl": "x"}}, "'label'"),
    ({"performance": {"phisical_batch": 3}}, "'physical_batch'"),
]


@pytest.mark.parametrize(("wrong", "suggestion"), UNKNOWN, ids=[suggestion for _, suggestion in UNKNOWN])
def test_an_unknown_key_brings_a_suggestion(wrong: dict[str, Any], suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {suggestion}"):
        parse_train_config(DIGITS, wrong)


def test_an_unknown_recipe_brings_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'dpsgd'"):
        parse_train_config(DIGITS, {"recipe": "dp-sgd"})


UNUSABLE: list[tuple[str, Any]] = [
    ("epsilon", 0),
    ("epsilon", -1),
    ("epsilon", float("inf")),
    ("epsilon", float("nan")),
    ("delta", 0),
    ("delta", 1),
    ("noise_multiplier", 0),
    ("noise_multiplier", 1e-9),
    ("noise_multiplier", 1e6),
    ("clip_norm", 0),
    ("batch_size", 0),
    ("records", 0),
    ("steps", 0),
    ("epochs", 0),
    ("learning_rate", -0.1),
    ("sigma", 0),
    ("copies", -1),
    ("width", 0),
    ("seed", -1),
]


@pytest.mark.parametrize(("key", "value"), UNUSABLE, ids=[f"{key}={value}" for key, value in UNUSABLE])
def test_an_unusable_value_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_train_config(DIGITS, {key: value})
    assert caught.value.where == key
    assert repr(value) in caught.value.got


@pytest.mark.parametrize("order", [0, 1])
def test_noise_that_is_set_twice_is_refused(order: int) -> None:
    layers: list[dict[str, Any]] = [{"epsilon": 1.0}, {"noise_multiplier": 1.0}]
    with pytest.raises(ConfigError, match="noise is set twice"):
        parse_train_config(DIGITS, layers[order], layers[1 - order])


def _resolved(source: Path, **changes: Any) -> ResolvedConfig:
    config = parse_train_config(tiny(source, **changes))
    return resolve(config, load(config.data))


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
    with pytest.raises(ConfigError, match="no plan without noise"):
        plan_of(_resolved(source, recipe="regular"))


@pytest.mark.parametrize(("records", "batch"), [(90, 90), (300, 256), (60_000, 2000)])
def test_an_open_batch_follows_from_the_declared_records_alone(source: Path, records: int, batch: int) -> None:
    resolved = _resolved(source, batch_size=None, records=records, noise_multiplier=1.0, epsilon=None, delta=1e-6)
    assert (resolved.batch_size, resolved.sample_rate) == (batch, batch / records)


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    config = parse_train_config(DIGITS)
    with pytest.raises(ValueError, match="frozen"):
        config.delta = 0.5
