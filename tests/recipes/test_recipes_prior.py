"""Learned weights to start from: decided by settings alone, never by a record, and written down."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_fixtures import fresh_network, interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from safetensors.torch import load_file
from small_runs import ledger_lines, model_bytes, run_json, tiny
from torch import nn

from twinproof.auditing.verify import verify_run
from twinproof.data.arrays import from_arrays
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.files import sha256_file
from twinproof.guarantee import Status
from twinproof.layers import networks
from twinproof.layers.networks import PRIOR_WIDTH, Prior, build_network, start_from_prior
from twinproof.recipes import network as noise_network
from twinproof.recipes import train as train_module
from twinproof.recipes.config import ResolvedConfig, TrainConfig, parse_train_config, public_config
from twinproof.recipes.network import Own, run_network
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import resolve
from twinproof.recipes.resumption import describe_prior, refuse_other_prior
from twinproof.recipes.train import train
from twinproof.runs.layout import update_run_json
from twinproof.runs.run import Run

RECORDS, SIDE = 30, 8
SEED = 3


@cache
def _images(seed: int, shape: tuple[int, ...] = (1, SIDE, SIDE)) -> Dataset:
    """Random images; all data sets of one shape are described in the same words."""
    generator = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part, count in (("train", RECORDS), ("test", 6)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) + seed) % 3
    return from_arrays("images", arrays)


def _settings(**changes: Any) -> dict[str, Any]:
    """Two private steps of the house recipe with its own network, which is too large for images of 8x8 unless named."""
    settings = tiny("images", recipe="twinproof", model="gelu-cnn", steps=2, batch_size=10, copies=1, averaging=0, delta=1e-3)
    del settings["data"]
    return settings | changes


def _resolved(dataset: Dataset, **changes: Any) -> ResolvedConfig:
    return resolve(parse_train_config({"data": {"source": "images"}, **_settings(**changes)}), dataset)


def _still(dataset: Dataset, root: Path, **changes: Any) -> bytes:
    """The released weights of a run whose steps do nothing: those that it started from."""
    return model_bytes(train(_settings(learning_rate=0, **changes), root, dataset=dataset).root)


# --- what is decided -----------------------------------------------------------------------------------------------------

LARGE = (1, 20, 20)


@pytest.mark.parametrize(
    ("shape", "changes", "model", "prior"),
    [
        (LARGE, {"model": None}, "gelu-cnn", "figures"),
        ((1, 28, 33), {"model": None}, "gelu-cnn", "figures"),
        ((1, 19, 28), {"model": None}, "small-cnn", "none"),
        ((3, 20, 20), {"model": None}, "tramer-boneh-cnn", "none"),
        ((1, SIDE, SIDE), {"model": None}, "small-cnn", "none"),
        ((1, SIDE, SIDE), {}, "gelu-cnn", "figures"),
        (LARGE, {"model": None, "prior": "none"}, "gelu-cnn", "none"),
        (LARGE, {"model": None, "prior": "figures"}, "gelu-cnn", "figures"),
        (LARGE, {"model": None, "width": 1}, "gelu-cnn", "none"),
        (LARGE, {"model": "tramer-boneh-cnn"}, "tramer-boneh-cnn", "none"),
        (LARGE, {"recipe": "dpsgd", "model": None}, "tramer-boneh-cnn", "none"),
        (LARGE, {"recipe": "dpsgd", "width": 2}, "gelu-cnn", "none"),
        (LARGE, {"recipe": "dpsgd", "width": 2, "prior": "figures"}, "gelu-cnn", "figures"),
    ],
    ids=str,
)
def test_network_and_prior_are_decided_and_written_down(
    shape: tuple[int, ...], changes: dict[str, Any], model: str, prior: str
) -> None:
    config = _resolved(_images(0, shape), **changes)
    assert (config.model, config.prior) == (model, Prior(prior))
    assert config.model_dump(mode="json")["prior"] == prior


def test_the_house_recipe_starts_from_it_unasked() -> None:
    """Beside it ``interval``, whose network has weights of its own."""
    assert [recipe.name for recipe in RECIPES.values() if recipe.start.from_prior] == ["twinproof", "interval"]


@pytest.mark.parametrize(
    ("shape", "changes"),
    [(LARGE, {"width": 1}), (LARGE, {"model": "scatter-cnn"}), ((3, 20, 20), {}), ((1, SIDE, SIDE), {"model": None})],
    ids=str,
)
def test_asked_for_where_there_is_none_it_is_one_clear_error(
    shape: tuple[int, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no learned weights to start from") as caught:
        train(_settings(prior="figures", **changes), tmp_path / "run", dataset=_images(0, shape))
    assert caught.value.where == "prior"
    assert str(changes.get("width", PRIOR_WIDTH)) in caught.value.got
    assert "gelu-cnn of width 2" in caught.value.wanted
    assert caught.value.fix
    assert not (tmp_path / "run").exists(), "nothing is half written"


def test_a_network_of_ones_own_starts_from_its_own_weights(tmp_path: Path) -> None:
    own = build_network("gelu-cnn", (1, SIDE, SIDE), 3, width=PRIOR_WIDTH)
    settings = _settings(learning_rate=0)
    del settings["model"]
    run = train(settings, tmp_path / "run", dataset=_images(0), network=own)
    assert run.record["config"]["prior"] == "none"
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in run.model().state_dict().items())
    with pytest.raises(ConfigError, match="no learned weights"):
        train(settings | {"prior": "figures"}, tmp_path / "other", dataset=_images(0), network=own)


# --- the promise: the start is a function of settings and key ------------------------------------------------------------


def _looks_at_the_records(root: Path, **changes: Any) -> bool:
    """Whether two runs that differ in their records alone, and whose steps do nothing, release different weights."""
    first, second = (_still(_images(seed), root / str(seed), **changes) for seed in (1, 2))
    return first != second


@pytest.mark.parametrize("changes", [{}, {"prior": "none"}, {"averaging": 0.9, "sigma": 1.0}], ids=str)
def test_the_start_does_not_look_at_the_records(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not _looks_at_the_records(tmp_path, **changes)


def test_planted_start_shifted_by_the_mean_of_the_records_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
        network = run_network(config, own, dataset)
        with torch.no_grad():
            next(network.parameters()).add_(float(dataset.train.inputs.mean()) / dataset.levels)
        return network

    monkeypatch.setattr(noise_network, "run_network", shifted)
    assert _looks_at_the_records(tmp_path)


def test_planted_prior_chosen_by_the_records_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A noise that is estimated from the records picks another of the packaged weights."""

    def planted(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
        estimate = 0.25 if dataset.train.labels[0] == 1 else 1.0
        return run_network(config.model_copy(update={"sigma": estimate}), own, dataset)

    monkeypatch.setattr(noise_network, "run_network", planted)
    assert _looks_at_the_records(tmp_path)


def test_with_steps_that_do_something_the_records_are_looked_at(tmp_path: Path) -> None:
    """The comparison tells runs apart: the same two data sets at another rate."""
    first, second = (model_bytes(train(_settings(), tmp_path / str(seed), dataset=_images(seed)).root) for seed in (1, 2))
    assert first != second


def test_the_weights_before_the_first_step_are_the_files_and_the_keys(tmp_path: Path) -> None:
    _still(_images(1), tmp_path / "run", sigma=0.36)
    wanted = fresh_network(SEED, (1, SIDE, SIDE), "gelu-cnn", width=PRIOR_WIDTH)
    fresh = wanted.state_dict()["10.weight"].clone()
    start_from_prior(wanted, 0.5)
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, wanted.state_dict()[name]) for name, value in found.items())
    assert torch.equal(found["10.weight"], fresh)


def test_the_prior_changes_no_promise(tmp_path: Path) -> None:
    with_it = train(_settings(seed=None), tmp_path / "with", dataset=_images(1))
    without = train(_settings(seed=None, prior="none"), tmp_path / "without", dataset=_images(1))
    assert with_it.guarantee.status is Status.PROVEN
    assert with_it.guarantee == without.guarantee
    assert with_it.record["privacy"] == without.record["privacy"]
    spent = [
        [line["body"] for line in ledger_lines(run.root) if line["kind"] == "poisson-gaussian"] for run in (with_it, without)
    ]
    assert spent[0] == spent[1]
    assert verify_run(with_it.root).ok


def test_with_a_noise_layer_the_network_starts_from_it_too() -> None:
    """The nearest noise is then that of the layer, which settings decide."""
    layer = {"place": "input", "redistribution": "uniform", "mechanism": "extended", "norm": "l2", "attack_bound": 0.3}
    changes = {"recipe": "securesgd", "width": PRIOR_WIDTH, "prior": "figures", "noise_layer": layer}
    config = _resolved(_images(0), **changes)
    wanted = build_network("gelu-cnn", (1, SIDE, SIDE), 3, width=PRIOR_WIDTH)
    start_from_prior(wanted, config.sigma)
    found = run_network(config, Own(), _images(0)).state_dict()
    first = wanted.state_dict()["0.weight"]
    assert any(value.shape == first.shape and torch.equal(value, first) for value in found.values())


# --- runs from before there was such a setting ---------------------------------------------------------------------------


def _before(settings: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch, *, steps: int | None = None) -> None:
    """Makes a run as a version without the setting did; with ``steps`` it is left after so many."""

    def older(config: TrainConfig) -> dict[str, Any]:
        stored = public_config(config)
        del stored["prior"]
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "public_config", older)
        if steps is None:
            train(settings, root, dataset=_images(1))
        else:
            interrupt(settings, root, steps=steps, dataset=_images(1))
    assert "prior" not in run_json(root)["config"]


def test_a_finished_run_without_the_setting_opens_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _settings(prior="none")
    _before(settings, tmp_path / "run", monkeypatch)
    run = Run.open(tmp_path / "run")
    assert run.model()(torch.zeros(1, 1, SIDE, SIDE)).shape == (1, 3)
    assert verify_run(run.root).ok
    asked_again = _settings()  # what such a run was started with
    assert train(asked_again, run.root, resume=True, dataset=_images(1)).record == run.record


@pytest.mark.parametrize("steps", [1, 3], ids=["before the first checkpoint", "after it"])
def test_an_interrupted_run_without_the_setting_ends_with_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """It started from random weights, whatever the recipe starts from today."""
    settings = _settings(prior="none", steps=4)
    whole = train(settings, tmp_path / "whole", dataset=_images(1))
    _before(settings, tmp_path / "run", monkeypatch, steps=steps)
    resumed = train(None if steps == 1 else settings, tmp_path / "run", resume=True, dataset=_images(1))
    assert model_bytes(resumed.root) == model_bytes(whole.root)
    assert verify_run(resumed.root).ok


def test_planted_resumption_that_starts_from_what_the_recipe_does_today_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(prior="none", steps=4)
    whole = train(settings, tmp_path / "whole", dataset=_images(1))
    _before(settings, tmp_path / "run", monkeypatch, steps=1)

    def todays(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
        return run_network(config.model_copy(update={"prior": Prior.FIGURES}), own, dataset)

    monkeypatch.setattr(noise_network, "run_network", todays)
    assert model_bytes(train(None, tmp_path / "run", resume=True, dataset=_images(1)).root) != model_bytes(whole.root)


def test_an_interrupted_run_that_started_from_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    settings = _settings(steps=4, averaging=0.9)
    whole = train(settings, tmp_path / "whole", dataset=_images(1))
    interrupt(settings, tmp_path / "run", steps=3, dataset=_images(1))
    with pytest.raises(RunError, match=r"not the settings(.|\n)*prior"):
        train(settings | {"prior": "none"}, tmp_path / "run", resume=True, dataset=_images(1))
    assert model_bytes(train(settings, tmp_path / "run", resume=True, dataset=_images(1)).root) == model_bytes(whole.root)


def test_the_run_names_the_file_it_started_from(tmp_path: Path) -> None:
    shipped = sha256_file(Path(networks.__file__).with_name("prior.safetensors"))
    run = train(_settings(), tmp_path / "with", dataset=_images(1))
    assert run.record["prior"] == {"name": "figures", "sha256": shipped}
    assert verify_run(run.root).ok
    assert "prior" not in train(_settings(prior="none"), tmp_path / "without", dataset=_images(1)).record
    update_run_json(run.root, prior={"name": "figures", "sha256": "0" * 64})
    assert [problem.what for problem in verify_run(run.root).problems] == [
        "the run started from weights that are not those of this version"
    ]


def test_a_run_that_started_from_other_weights_does_not_go_on(tmp_path: Path) -> None:
    """A later version may ship others, and a run without a checkpoint would begin anew from those."""
    config = _resolved(_images(1), prior="figures")
    refuse_other_prior(config, describe_prior(config))
    refuse_other_prior(config, {})
    with pytest.raises(RunError, match="other weights than this version has"):
        refuse_other_prior(config, {"prior": {"name": "figures", "sha256": "0" * 64}})
