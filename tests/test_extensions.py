"""Extension points: listed without loading, a broken one costs a warning, and nothing from outside is ever called proven."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor, nn

import twinproof as tp
from twinproof import extensions
from twinproof.attacks.search import Attack, attack_named, attack_names, pgd
from twinproof.certification.bounds import TightGaussian
from twinproof.certification.catalogue import bound_names, find_bound, status_of
from twinproof.certification.method import Method, Sampling
from twinproof.errors import ConfigError
from twinproof.extensions import Group, Plugin, find, names, permitted, plugin_of
from twinproof.guarantee import Status
from twinproof.layers.noise import Law
from twinproof.recipes.dpsgd import DPSGD
from twinproof.recipes.recipe import Recipe, Variant, find_variant, variants_of
from twinproof.recipes.registry import all_recipes, find_recipe, privacy_status, recipe_names
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data
from twinproof.training.per_example import fast as registry
from twinproof.training.per_example.fast import handler_of, handles, rule_plugins

# A package that lies: it says that its bound and its recipe are proven, and that they belong to the library.
LIAR = """
from dataclasses import replace
from twinproof.certification.bounds import TightGaussian
from twinproof.guarantee import Status
from twinproof.recipes.dpsgd import DPSGD
from twinproof.recipes.recipe import Variant
from twinproof.attacks.search import pgd

class Tenfold(TightGaussian):
    name = "tenfold"
    status = Status.PROVEN
    theorem = "trust me"
    def _reach(self, low, high):
        return 10 * super()._reach(low, high)

Tenfold.__module__ = "twinproof.certification.bounds"
RECIPE = replace(DPSGD, name="liar", privacy_status=Status.PROVEN)
VARIANT = Variant("dpsgd", "loud", Status.PROVEN, defaults={"learning_rate": 0.125})
"""
POINTS = """
[twinproof.recipes]
liar = liar:RECIPE
gone = liar:NOWHERE
broken = broken_plugin:RECIPE
odd = liar:pgd
dpsgd = liar:RECIPE

[twinproof.variants]
dpsgd.loud = liar:VARIANT

[twinproof.bounds]
tenfold.gaussian = liar:Tenfold

[twinproof.attacks]
climb = liar:pgd
"""


@pytest.fixture
def liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package called liar, version 6.6."""
    (tmp_path / "liar.py").write_text(LIAR)
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('not today')\n")
    metadata = tmp_path / "liar-6.6.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: liar\nVersion: 6.6\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield
    monkeypatch.undo()
    sys.modules.pop("liar", None)
    _forget()


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(extensions, "_in_scripts", {group: {} for group in Group})


def _forget() -> None:
    extensions._installed.cache_clear()
    extensions._loaded.cache_clear()


@pytest.mark.usefixtures("liar")
def test_names_are_listed_without_loading_anything() -> None:
    assert "liar" in recipe_names()
    assert "tenfold" in bound_names()
    assert "climb" in attack_names()
    assert "loud" in variants_of("dpsgd")
    assert "liar" not in sys.modules


@pytest.mark.usefixtures("liar")
def test_a_broken_extension_costs_a_warning_and_nothing_else() -> None:
    with pytest.warns(UserWarning, match="'broken' of liar cannot be loaded: RuntimeError: not today"):
        assert find(Group.RECIPES, "broken", Recipe) is None
    with pytest.warns(UserWarning, match="'gone' of liar cannot be loaded"), pytest.raises(ConfigError, match="no such recipe"):
        find_recipe("gone")
    with pytest.warns(UserWarning, match="'odd' is a function and not a Recipe"):
        assert {"liar", "dpsgd"} <= {recipe.name for recipe in all_recipes()}


@pytest.mark.usefixtures("liar")
def test_nothing_from_outside_is_called_proven() -> None:
    bound = find_bound("tenfold", Law.GAUSSIAN)
    assert (bound.status, status_of(bound)) == (Status.PROVEN, Status.ASSUMED)
    recipe = find_recipe("liar")
    assert (recipe.privacy_status, privacy_status(recipe)) == (Status.PROVEN, Status.ASSUMED)
    assert find_recipe("dpsgd").variant_status("loud") is Status.ASSUMED
    assert find_recipe("dpsgd") is DPSGD, "the library's own cannot be replaced"
    assert [status_of(find_bound("tight", law)) for law in Law] == [Status.PROVEN] * 2
    assert status_of(type(bound)()) is Status.ASSUMED, "an instance of its own"
    assert [permitted(status) for status in Status] == [Status.ASSUMED, *list(Status)[1:]]


@pytest.mark.usefixtures("liar", "one_thread")
def test_runs_name_the_plugins_that_they_use_and_what_is_assumed(tmp_path: Path) -> None:
    common = {"data": {"source": "digits"}, "model": "mlp", "steps": 2, "noise_multiplier": 2.0, "delta": 1e-4}
    common |= {"performance": {"device": "cpu"}}
    plugin = {"package": "liar", "version": "6.6"}
    for settings, entry in (
        ({"recipe": "liar"}, {"kind": "recipe", "name": "liar", **plugin}),
        ({"recipe": "dpsgd", "variant": "loud"}, {"kind": "variant", "name": "dpsgd.loud", **plugin}),
    ):
        run = train(common | settings, tmp_path / entry["kind"])
        assert run.record["plugins"] == [entry]
        assert run.guarantee.status is Status.ASSUMED
        assert run.guarantee.assumptions[-1] == Plugin(**entry).assumption
        assert run.epsilon is not None
    assert run.record["config"]["learning_rate"] == 0.125, "the variant's own default"
    tp.certify(run, load_run_data(run), sampling=Sampling(10, 20), limit=2, method=Method(bound="tenfold"))
    record = Run.open(run.root).record
    assert record["plugins"][1:] == [{"kind": "bound", "name": "tenfold", **plugin}]
    robustness = record["guarantees"]["robustness"]["l2-tenfold"]
    assert robustness["status"] == "assumed"
    assert "'tenfold'" in robustness["assumptions"][-1]
    plain = train(common | {"recipe": "dpsgd"}, tmp_path / "plain")
    assert "plugins" not in plain.record
    assert plain.guarantee.status is Status.PROVEN


@pytest.mark.usefixtures("scripts")
def test_a_script_registers_with_decorators() -> None:
    @extensions.recipe("scripted")
    def scripted() -> Recipe:
        return replace(DPSGD, name="scripted")

    @extensions.variant("dpsgd.scripted")
    def variant() -> Variant:
        return Variant("dpsgd", "scripted", Status.PUBLISHED)

    @extensions.bound("half.gaussian")
    class Half(TightGaussian):
        name: ClassVar[str] = "half"

    @extensions.attack("mine")
    def mine(**options: Any) -> Attack:
        return pgd(**options)

    assert find_recipe("scripted").name == scripted().name
    assert find_variant("dpsgd", "scripted") == variant()
    assert variants_of("dpsgd") == ["sound", "scripted"]
    assert find(Group.BOUNDS, "half.gaussian", Half).name == "half"
    assert attack_named("mine", steps=3) == mine(steps=3)
    for group, name in ((Group.RECIPES, "scripted"), (Group.BOUNDS, "half.gaussian"), (Group.ATTACKS, "mine")):
        plugin = plugin_of(group, name)
        assert plugin is not None
        assert (plugin.package, plugin.version) == (__name__.partition(".")[0], "")


class Scale(nn.Module):
    """A layer of somebody else's."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def test_a_layer_rule_from_outside_is_named_whatever_its_module_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_HANDLERS", dict(registry._HANDLERS))

    def rule(layer: Scale, calls: Any, records: int) -> dict[str, Any]:
        return {}

    rule.__module__ = "twinproof.training.per_example.layers"
    extensions.layer_rule(Scale)(rule)
    assert handler_of(Scale()) is rule
    assert [plugin.name for plugin in rule_plugins(nn.Sequential(nn.Linear(2, 2), Scale()))] == [f"{__name__}.Scale"]
    assert rule_plugins(nn.Sequential(nn.Linear(2, 2), nn.Conv2d(1, 1, 1))) == []
    handles(nn.Linear)(rule)
    assert len(rule_plugins(nn.Linear(2, 2))) == 1, "a rule put in place of the library's own is seen too"


@pytest.mark.parametrize("missing", [("certify", "--bound", "published"), ("reproduce", "--list")])
def test_what_comes_with_the_papers_says_what_to_install(
    missing: tuple[str, ...], call: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "_installed", lambda group: {})
    monkeypatch.setattr("twinproof.certification.catalogue._from_outside", lambda name: None)
    arguments = (missing[0], trained, *missing[1:]) if missing[0] == "certify" else missing
    answer = call(*arguments)
    assert answer.code == 2
    assert "pip install twinproof-papers" in answer.err
    answer = call("train", "--data", "digits", "--recipe", "securesgd", "--set", "variant=published", "--out", trained / "x")
    assert answer.code == 2
    assert "pip install twinproof-papers" in answer.err
    assert "reproduce" not in call("--help").out


def test_the_papers_are_an_extension_like_any_other() -> None:
    assert "reproduce" in names(Group.COMMANDS)
    plugin = plugin_of(Group.VARIANTS, "stobatch.published")
    assert plugin is not None
    assert plugin.package == "twinproof-papers"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_bound("published", Law.LAPLACE).status is Status.REFUTED
