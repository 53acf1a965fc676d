"""Gaussian augmentation without privacy: nothing is promised about records, and its copies carry the certificate's noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_fixtures import on_one_thread as on_one_thread
from small_runs import ledger_lines

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Sampling
from twinproof.data.config import DataConfig
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.evaluation.certified import summarize
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.recipes.config import TrainConfig, parse_train_config
from twinproof.recipes.dpsgd import GAUSSIAN
from twinproof.recipes.registry import RECIPES, find_recipe
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.training.passes import GaussianCopies

SETTINGS: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "gaussian", "model": "mlp", "sigma": 0.25, "seed": 1}


@cache
def _digits() -> Dataset:
    return load(DataConfig(source="digits"))


def _config(**changes: Any) -> TrainConfig:
    return parse_train_config(SETTINGS | changes)


def test_it_is_in_the_registry_and_promises_nothing_about_records() -> None:
    assert find_recipe("gaussian") is GAUSSIAN
    assert list(RECIPES)[:2] == ["regular", "gaussian"]
    assert (GAUSSIAN.private, GAUSSIAN.privacy_status) == (False, Status.NONE)
    assert not GAUSSIAN.starts_from_prior


def test_its_defaults() -> None:
    config = _config()
    found = (config.learning_rate, config.copies, config.originals, config.schedule, config.averaging, config.width)
    assert found == (0.05, 1, False, "cosine", 0, 1)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, GaussianCopies(1, 0.25, original=False)),
        ({"sigma": 1.0, "copies": 3}, GaussianCopies(3, 1.0, original=False)),
        ({"originals": True, "copies": 2}, GaussianCopies(2, 0.25, original=True)),
        ({"originals": True, "copies": 0}, GaussianCopies(0, 0.25, original=True)),
    ],
    ids=str,
)
def test_its_copies_carry_the_noise_and_number_of_the_settings(changes: dict[str, Any], wanted: GaussianCopies) -> None:
    assert GAUSSIAN.augmentation(resolve(_config(**changes), _digits())) == wanted


def test_its_copies_have_that_deviation() -> None:
    """10^6 draws: 1 % is off by more than 14 standard errors, and the check's own limit lies at 6."""
    copies = GAUSSIAN.augmentation(resolve(_config(sigma=0.5, copies=4), _digits()))
    noise = copies(torch.zeros(250, 1000), torch.Generator().manual_seed(0)).double()
    assert noise.shape == (250, 4, 1000)
    assert abs(float(noise.std()) / 0.5 - 1) < 6 / (2e6**0.5)
    assert abs(float(noise.mean())) < 6 * 0.5 / 1e3


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"copies": 0}, "copies"),
        ({"copies": -1}, "copies"),
        ({"copies": 65}, "copies"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": -1.0}, "sigma"),
        ({"learning_rate": -0.1}, "learning_rate"),
        ({"clip_rule": "psac-paper"}, "clip_rule"),
        ({"regulariser": {"weight": 1.0}}, "regulariser"),
        ({"noise_layer": {"place": "input"}}, "noise_layer"),
        ({"variant": "published"}, "variant"),
        ({"schedule": "stairs"}, "schedule"),
        ({"prior": "figures"}, "prior"),
    ],
    ids=str,
)
def test_what_it_cannot_use_is_refused_by_name(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(_config(**changes), _digits())
    assert caught.value.where.startswith(where)


def test_it_trains_and_certifies(tmp_path: Path) -> None:
    run = train(SETTINGS | {"epochs": 20, "epsilon": 3.0}, tmp_path / "run", dataset=None)
    assert run.guarantee.status is Status.NONE
    assert run.epsilon is None
    assert run.record["privacy"] is None
    assert run.record["config"]["epsilon"] is None, "a budget that nothing keeps is not written down"
    assert [line["kind"] for line in ledger_lines(run.root)] == ["open", "close"]
    certified = tp.certify(run, _digits(), sampling=Sampling(20, 200, 0.001), limit=60, key=Key.from_seed(3))
    assert certified.settings.noise.sigma == 0.25
    summary = summarize(certified.certificates, certified.settings, radii=(0.0, 0.25)).as_dict()
    assert summary["certified_accuracy"]["0"] > 0.7
    assert summary["certified_accuracy"]["0.25"] > 0.4
    assert verify_run(run.root).ok


def test_noise_in_training_is_what_makes_radii(tmp_path: Path) -> None:
    """Planted: the same training that forgets the noise certifies less."""
    sampling, radii = Sampling(20, 200, 0.001), []
    for recipe in ("gaussian", "regular"):
        settings = SETTINGS | {"recipe": recipe, "sigma": 1.0, "epochs": 15, "schedule": "cosine"}
        run = train(settings, tmp_path / recipe)
        certified = tp.certify(run, _digits(), sampling=sampling, limit=80, key=Key.from_seed(3))
        radii.append(summarize(certified.certificates, certified.settings, radii=(0.0,)).as_dict()["acr"])
    assert radii[0] > 1.05 * radii[1]
