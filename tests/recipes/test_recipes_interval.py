"""Training on the worst case by interval bounds: what it certifies, its settings, where it begins, and resumption."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file, save_file
from small_runs import ledger_lines, model_bytes, one_thread, tiny
from torch import Tensor, nn

from twinproof.auditing.verify import verify_run
from twinproof.data.arrays import from_arrays
from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset
from twinproof.errors import ConfigError, UserError
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers import networks
from twinproof.layers.interval import INTERVAL_CNN, interval_network
from twinproof.layers.networks import PRIOR_SIZES, Prior, build_network, prior_key
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.interval import INTERVAL, growth_of, interval_settings
from twinproof.recipes.network import Own, initial_network
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof.training.interval import Growth, IntervalView
from twinproof.training.passes import DeviceRecords

SIZE = 0.05
SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "interval",
    "epsilon": 3.0,
    "learning_rate": 2.0,
    "interval": {"size": 0.06},
    "seed": 1,
    "performance": {"device": "cpu"},
}


@cache
def _digits() -> Dataset:
    return load(DataConfig(source="digits"))


def _config(**changes: Any) -> ResolvedConfig:
    settings = {"data": {"source": "digits"}, "recipe": "interval", "noise_multiplier": 5.0, "delta": 1e-6, **changes}
    return resolve(parse_train_config(settings), _digits())


# --- what comes out ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with one_thread():
        return train(SETTINGS, tmp_path_factory.mktemp("interval") / "run")


def certified(network: nn.Module, dataset: Dataset, size: float) -> tuple[float, float]:
    """Shares of the test records that are right, and right all over their balls, by bounds written out here."""
    test = DeviceRecords(dataset.test, dataset.levels, torch.device("cpu"))
    inputs, labels = test.inputs(slice(None)).double().flatten(1), test.labels
    first, last = network.double().get_submodule("1"), network.get_submodule("3")
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        right = network(inputs).argmax(1) == labels
        low, high = (inputs - size).clamp(0, 1), (inputs + size).clamp(0, 1)
        up, down = first.weight.clamp(min=0), first.weight.clamp(max=0)
        ends = [low @ up.T + high @ down.T + first.bias, high @ up.T + low @ down.T + first.bias]
        low, high = (end.relu() for end in ends)
        holds = torch.ones_like(right)
        for row, label in enumerate(labels):
            others = last.weight[label] - last.weight
            margins = (others.clamp(min=0) * low[row] + others.clamp(max=0) * high[row]).sum(1) + last.bias[label] - last.bias
            margins[label] = math.inf
            holds[row] = bool((margins > 0).all())
    return float(right.double().mean()), float((right & holds).double().mean())


def test_a_run_on_the_digits_is_useful_and_certifies(trained: Run) -> None:
    assert trained.record["config"]["model"] == "relu-mlp"
    right, holds = certified(trained.model(), _digits(), SIZE)
    assert right == pytest.approx(trained.record["accuracy"]["value"], abs=0.01)
    assert right > 0.8
    assert holds > 0.4
    assert verify_run(trained.root).ok


def test_ordinary_dp_sgd_certifies_far_less(tmp_path: Path) -> None:
    """The same network and promise without the worst case: what is certified comes from the loss."""
    run = train({**SETTINGS, "recipe": "dpsgd", "model": "relu-mlp", "interval": None}, tmp_path / "run")
    right, holds = certified(run.model(), _digits(), SIZE)
    assert right > 0.8
    assert holds < 0.2


def test_the_promise_and_the_account_are_those_of_dp_sgd(source: Path, tmp_path: Path) -> None:
    runs = [train(tiny(source, recipe=name, seed=None), tmp_path / name) for name in ("interval", "dpsgd")]
    assert runs[0].guarantee.status is Status.PROVEN
    assert runs[0].guarantee == runs[1].guarantee
    assert runs[0].record["privacy"] == runs[1].record["privacy"]
    spent = [[line["body"] for line in ledger_lines(run.root) if line["kind"] == "poisson-gaussian"] for run in runs]
    assert spent[0] == spent[1]
    assert all(verify_run(run.root).ok for run in runs)


def test_size_and_share_act(source: Path, tmp_path: Path) -> None:
    found = set()
    for number, section in enumerate([{}, {"size": 0.3}, {"share": 0.2}, {"ramp": 1.0}, {"start": 0.4}]):
        found.add(model_bytes(train(tiny(source, recipe="interval", interval=section), tmp_path / str(number)).root))
    assert len(found) == 5


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_an_interrupted_run_ends_with_the_same_bits(source: Path, tmp_path: Path, steps: int) -> None:
    """The ball of a step follows from the step's number, whatever was interrupted before."""
    settings = tiny(source, recipe="interval")
    whole = train(settings, tmp_path / "whole")
    interrupt(settings, tmp_path / "run", steps=steps)
    assert model_bytes(train(None, tmp_path / "run", resume=True).root) == model_bytes(whole.root)


def test_an_own_sequential_network_is_taken_and_keeps_its_weights(source: Path, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    run = train(tiny(source, recipe="interval", learning_rate=0), tmp_path / "still", network=network)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in run.model().state_dict().items())
    moved = train(tiny(source, recipe="interval", seed=None), tmp_path / "run", network=network)
    assert moved.guarantee.status is Status.PROVEN
    with pytest.raises(UserError, match="no interval bounds") as caught:
        train(tiny(source, recipe="interval"), tmp_path / "other", network=nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()))
    assert "Sigmoid" in str(caught.value)
    assert not (tmp_path / "other").exists()


# --- settings ------------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_measured_run() -> None:
    config = _config(records=60_000)
    assert (config.batch_size, config.steps, config.momentum, config.clip_norm) == (4096, 800, 0.9, 0.1)
    assert (config.learning_rate, config.schedule, config.copies) == (8.0, "cosine", 0)
    assert growth_of(config) == Growth(0.11, 0.9, 800, ramp=0.5, start=0.0)
    assert _config().batch_size == 256, "a small data set has batches of its own"
    assert growth_of(_config(interval={"size": 0.33})).size == 0.33
    assert interval_settings(_config(interval={"size": 0.33})).share == 0.9, "the others stay"


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"size": 0}, "greater than 0"),
        ({"size": 1.5}, "less than or equal to 1"),
        ({"size": "wide"}, "valid number"),
        ({"size": math.nan}, "less than or equal to 1"),
        ({"share": 1.1}, "less than or equal to 1"),
        ({"ramp": -0.1}, "greater than or equal to 0"),
        ({"ramp": 0.2, "start": 0.3}, "start must be at most ramp"),
        ({"sizes": 0.2}, "did you mean 'size'"),
        ({}, ""),
    ],
    ids=str,
)
def test_wrong_settings_are_one_error(section: dict[str, Any], named: str, source: Path, tmp_path: Path) -> None:
    settings = tiny(source, recipe="interval", interval=section)
    if not section:
        assert train(settings, tmp_path / "run").record["config"]["interval"]["size"] == 0.11
        return
    with pytest.raises(ConfigError) as caught:
        train(settings, tmp_path / "run")
    assert "interval" in caught.value.where
    assert named in caught.value.wanted
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recipe": "dpsgd", "interval": {"size": 0.2}}, "know no interval"),
        ({"interval": None}, "a setting cannot be used"),
        ({"model": "mlp"}, "no interval bounds"),
        ({"noise_layer": {"place": "input"}}, "noise layer"),
        ({"regulariser": {"weight": 1.0}}, "regulariser"),
        ({"originals": False}, "original records"),
        ({"prior": "figures"}, "no learned weights"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_the_recipe_are_one_error(
    changes: dict[str, Any], named: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=named):
        train({**tiny(source, recipe="interval"), **changes}, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is half written"


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((7,), "relu-mlp"),
        ((1, 8, 8), "relu-mlp"),
        ((1, 15, 28), "relu-mlp"),
        ((1, 16, 16), INTERVAL_CNN),
        ((3, 32, 32), INTERVAL_CNN),
    ],
)
def test_the_network_follows_the_shape_and_has_bounds(shape: tuple[int, ...], name: str) -> None:
    assert interval_network(shape) == INTERVAL.network_for("sound", shape) == name
    view = IntervalView(build_network(name, shape, 3))
    assert view(torch.rand(2, *shape)).shape == (2, 3 + view.columns)


# --- where it begins -----------------------------------------------------------------------------------------------------


def _begun(**changes: Any) -> dict[str, Tensor]:
    return initial_network(_config(**changes), Own(), _digits(), Key.from_seed(3)).state_dict()


def test_weights_begin_as_bounds_need_them_by_the_runs_key() -> None:
    found, again = _begun(model=INTERVAL_CNN), _begun(model=INTERVAL_CNN)
    assert all(torch.equal(value, again[name]) for name, value in found.items())
    for name, value in found.items():
        if name.endswith("bias"):
            assert not value.any()
        elif value.numel() > 1000:  # beyond 5.5 deviations of a deviation's estimate
            wanted = math.sqrt(2 * math.pi) / value[0].numel()
            assert abs(float(value.std()) / wanted - 1) < 5.5 / math.sqrt(2 * value.numel())
    other = initial_network(_config(model=INTERVAL_CNN), Own(), _digits(), Key.from_seed(4)).state_dict()
    assert not torch.equal(found["0.weight"], other["0.weight"])


def test_only_this_recipe_begins_so() -> None:
    assert [recipe.name for recipe in RECIPES.values() if recipe.start.initialise is not None] == ["interval"]
    assert _begun(recipe="dpsgd", model=INTERVAL_CNN)["0.bias"].any()


def _with_priors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """A file of weights to begin with, in place of the package's, if it has one."""
    like = {name: value for name, value in build_network(INTERVAL_CNN, (1, 28, 28), 10).state_dict().items() if name < "7"}
    stored = {
        prior_key(size, name, INTERVAL_CNN): torch.full_like(value, size).half()
        for size in PRIOR_SIZES[INTERVAL_CNN]
        for name, value in like.items()
    }
    save_file(stored, folder / "interval-prior.safetensors")
    monkeypatch.setattr(networks, "files", lambda package: folder)
    monkeypatch.setattr(networks, "_weights", lambda network: load_file(folder / "interval-prior.safetensors"))
    return stored


@cache
def _images() -> Dataset:
    generator = np.random.default_rng(1)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 300), ("test", 6)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 3
    return from_arrays("images", arrays)


@pytest.mark.parametrize(("size", "nearest"), [(0.01, 0.11), (0.11, 0.11), (0.18, 0.11), (0.2, 0.33), (1.0, 0.33)])
def test_learned_weights_are_those_of_the_nearest_size(
    size: float, nearest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = _with_priors(tmp_path, monkeypatch)
    dataset = _images()
    settings = {"data": {"source": "digits"}, "recipe": "interval", "noise_multiplier": 5.0, "delta": 1e-6}
    config = resolve(parse_train_config(settings | {"interval": {"size": size}}), dataset)
    assert (config.model, config.prior) == (INTERVAL_CNN, Prior.FIGURES)
    found = initial_network(config, Own(), dataset, Key.from_seed(3)).state_dict()
    assert torch.equal(found["5.weight"], stored[prior_key(nearest, "5.weight", INTERVAL_CNN)].float())
    assert 0 < float(found["7.weight"].std()) < 0.1, "the last layer begins as bounds need it"
    assert resolve(parse_train_config(settings | {"prior": "none"}), dataset).prior is Prior.NONE


def test_without_the_file_it_begins_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "files", lambda package: tmp_path)
    settings = {"data": {"source": "digits"}, "recipe": "interval", "noise_multiplier": 5.0, "delta": 1e-6}
    assert resolve(parse_train_config(settings), _images()).prior is Prior.NONE
    with pytest.raises(ConfigError, match="no learned weights") as caught:
        resolve(parse_train_config(settings | {"prior": "figures"}), _images())
    assert INTERVAL_CNN in caught.value.wanted


@pytest.mark.parametrize(
    ("shape", "width"), [((1, 26, 28), 1), ((1, 28, 31), 1), ((3, 28, 28), 1), ((1, 28, 28), 2), ((28, 28), 1)]
)
def test_other_shapes_have_no_learned_weights(
    shape: tuple[int, ...], width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_priors(tmp_path, monkeypatch)
    assert networks.has_prior(INTERVAL_CNN, (1, 27, 30), 1)
    assert not networks.has_prior(INTERVAL_CNN, shape, width)
