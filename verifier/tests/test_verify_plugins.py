"""Recipes, bounds and attacks of other packages: never proven, and their numbers are named as not recomputed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synthetic_attacks import forge_json, write_attacked_run
from synthetic_promise import in_format_2
from synthetic_run import canonical, forge_ledger, forge_run, forge_settings, sha256, write_run
from twinproof_verify import verify

Change = Callable[[dict[str, Any]], Any]


def plugin(kind: str, name: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "package": "elsewhere", "version": "1.0"}


def named(kind: str, name: str) -> Change:
    return lambda run: run.update(plugins=[plugin(kind, name)])


def problems(root: Path) -> list[str]:
    return [problem.what for problem in verify(root).problems]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


def with_recipe(root: Path) -> None:
    """A run of a recipe from elsewhere, with a setting of its own."""
    forge_run(lambda run: run.update(recipe="theirs"))(root)
    forge_run(lambda run: run["config"].update(recipe="theirs", their_setting=3))(root)
    forge_run(named("recipe", "theirs"))(root)
    config = json.loads((root / "run.json").read_text())["config"]
    forge_ledger(lambda story: story[0][1].update(config_sha256=sha256(canonical(config).encode())))(root)


@pytest.mark.parametrize("status", ["assumed", "published", "none"])
def test_a_recipe_from_elsewhere_passes_below_proven(root: Path, status: str) -> None:
    with_recipe(root)
    assert any("recipe is of another package" in what for what in problems(root)), "proven"
    forge_run(lambda run: run["guarantees"]["privacy"].update(status=status))(root)
    result = verify(root)
    assert result.problems == ()
    assert any("recipe theirs, which comes from another package" in line for line in result.not_checked)


def test_a_refuted_recipe_states_no_epsilon(root: Path) -> None:
    with_recipe(root)
    forge_run(lambda run: run["guarantees"]["privacy"].update(status="refuted"))(root)
    assert problems(root) == ["guarantees.privacy is refuted, but states an epsilon"]
    forge_run(lambda run: run["guarantees"]["privacy"].update(values={}))(root)
    assert problems(root) == []


def test_without_its_plugin_a_setting_is_unknown(root: Path) -> None:
    with_recipe(root)
    forge_run(lambda run: run.pop("plugins"))(root)
    assert "config has a setting that does not exist" in problems(root)


@pytest.mark.parametrize(("kind", "name"), [("variant", "{recipe}.loud"), ("layer_rule", "theirs.layers.Linear")])
def test_training_with_a_part_from_elsewhere_is_never_proven(root: Path, kind: str, name: str) -> None:
    if kind == "variant":
        forge_run(lambda run: run["config"].update(variant="loud"))(root)
        config = json.loads((root / "run.json").read_text())["config"]
        forge_ledger(lambda story: story[0][1].update(config_sha256=sha256(canonical(config).encode())))(root)
        name = name.format(recipe=config["recipe"])
    forge_run(named(kind, name))(root)
    assert any("is of another package" in what for what in problems(root))
    forge_run(lambda run: run["guarantees"]["privacy"].update(status="assumed"))(root)
    result = verify(root)
    assert result.problems == ()
    assert any(name in line for line in result.not_checked)


def test_radii_of_a_bound_from_elsewhere_are_not_recomputed(root: Path) -> None:
    forge_settings(lambda settings: settings.update(bound="theirs", largest_radius=9.0))(root)
    assert "this bound is not proven for this noise" in problems(root)
    forge_run(named("bound", "theirs"))(root)
    assert problems(root) == ["guarantees.robustness.status is proven, but the bound is of another package"]
    forge_run(lambda run: run["guarantees"]["robustness"].update(status="assumed"))(root)
    result = verify(root)
    assert result.problems == ()
    assert any("bound theirs" in line for line in result.not_checked)


def test_an_attack_from_elsewhere_is_known_by_its_plugin(tmp_path: Path) -> None:
    root = tmp_path / "run"
    write_attacked_run(root)
    forge_json("attacks.json", lambda record: record.update(attacks=["theirs"]))(root)
    assert "attacks has a value it cannot have" in problems(root)
    forge_run(named("attack", "theirs"))(root)
    assert "attacks has a value it cannot have" not in problems(root)


@pytest.mark.parametrize("value", [None, 3, [3], [{**plugin("recipe", "x"), "url": "y"}], [plugin("network", "x")]])
def test_what_is_no_plugin_is_a_problem(root: Path, value: object) -> None:
    forge_run(lambda run: run.update(plugins=value))(root)
    assert any(what.startswith("plugins") for what in problems(root))


def test_a_plugin_that_made_nothing_excuses_no_words(root: Path) -> None:
    in_format_2(root)
    forge_run(named("recipe", "theirs"))(root)
    assert problems(root) == []
    forge_run(lambda run: run["guarantees"]["privacy"].update(promise="All is well."))(root)
    assert problems(root) == ["guarantees.privacy.promise does not follow from the settings of the run"]
