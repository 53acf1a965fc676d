"""Attacking a run whose network brings its noise along: silenced as "the network", voting over its own noise when smoothed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import twinproof as tp
from twinproof.attacks.objective import Objective, OwnNoise, Plain
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import Attack, Keep
from twinproof.certification.method import Method, Sampling, certifications
from twinproof.certification.run import smoothed_for_run
from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.evaluation import under_attack
from twinproof.evaluation.protocols import AttackPlan, smoothed_objective
from twinproof.evaluation.under_attack import AttackedRun
from twinproof.keys import Key
from twinproof.layers.noise import NoiseLayer, silenced
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data

LIMIT = 30
PLAN = AttackPlan("linf", (0.0625, 0.1875), ("pgd",), steps=6, draws=4)
SAMPLING = Sampling(20, 200)
CPU = torch.device("cpu")


def _certify(root: Path, dataset: Dataset, method: Method, sigma: float | None = None) -> None:
    tp.certify(
        Run.open(root),
        dataset,
        sampling=Sampling(20, 500),
        method=method,
        sigma=sigma,
        limit=LIMIT,
        device="cpu",
        key=Key.from_seed(6),
        overwrite=True,
    )


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PixelDP on the digits: noise after the first layer, certified in linf."""
    root = tmp_path_factory.mktemp("layered") / "run"
    settings = {"data": {"source": "digits"}, "recipe": "pixeldp", "model": "mlp", "steps": 60, "seed": 1}
    train({**settings, "performance": {"device": "cpu"}}, root)
    _certify(root, load_run_data(Run.open(root)), Method(norm="linf", bound="pixeldp"))
    return root


@pytest.fixture(scope="module")
def dataset(certified: Path) -> Dataset:
    return load_run_data(Run.open(certified))


@pytest.fixture
def root(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


def _attack(root: Path, dataset: Dataset, **options: Any) -> AttackedRun:
    settings = {"plan": PLAN, "sampling": SAMPLING, "limit": LIMIT, "device": "cpu", "key": Key.from_seed(5), **options}
    return tp.attack(Run.open(root), dataset, **settings)


def _draws(target: Objective) -> bool:
    return any(isinstance(layer, NoiseLayer) for layer in target.model.modules())


def test_the_record_names_the_noise_the_norm_and_the_bound(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[tuple[str, Objective]] = []

    def watched(attack: Attack, target: Objective, *args: Any, **options: Any) -> Any:
        attacked.append(("paper" if attack.keep is Keep.LAST else "adaptive", target))
        return run_attack(attack, target, *args, **options)

    monkeypatch.setattr(under_attack, "run_attack", watched)
    made = _attack(root, dataset)
    wanted = [("paper", Plain, False), ("adaptive", Plain, False), ("adaptive", OwnNoise, True)]
    assert [(name, type(target), _draws(target)) for name, target in attacked] == wanted * len(PLAN.sizes)
    settings = made.settings
    (certified,) = certifications(root).values()
    assert (made.name, settings.certificates, certified.name) == ("linf-pixeldp", "linf-pixeldp", "linf-pixeldp")
    assert (settings.noise, settings.network) == (certified.settings.noise, certified.settings.network)
    assert (settings.method.norm, settings.method.bound) == ("linf", "pixeldp")
    assert (settings.noise.place, settings.dimension) == ("first-layer", 64)
    assert not settings.random_network, "silenced, it answers twice alike"
    assert [result["reach"] for result in made.results["sizes"]] == [0.0625, 0.1875], "linf attacks, linf radii"
    assert made.results["certified_by"]["source"] == "certificates.csv"
    verification = tp.verify(root)
    assert verification.ok, verification.problems


def test_the_networks_own_answers_are_those_without_noise(root: Path, dataset: Dataset) -> None:
    from safetensors.numpy import load_file

    made = _attack(root, dataset, plan=replace(PLAN, sizes=(0.1875,)))
    model = Run.open(root).model()
    for name, stored in load_file(root / "attacks/linf-pixeldp/attacks.safetensors").items():
        with torch.no_grad(), silenced(model):
            classes = model(torch.as_tensor(stored.astype(np.float32) / dataset.levels)).argmax(dim=1)
        assert [line.network for line in made.lines if line.entry == name] == classes.tolist()


def test_another_sigma_is_attacked_at_that_sigma(root: Path, dataset: Dataset) -> None:
    """Certified with twice the noise, the gradients have twice the noise too, and the run's own network stays as it is."""
    layer = next(one for one in Run.open(root).model().modules() if isinstance(one, NoiseLayer))
    sigma = 2 * float(layer.deviation)
    smoothed = smoothed_for_run(Run.open(root), dataset, CPU, sigma=sigma)
    objective = smoothed_objective(smoothed, 4)
    deviations = [
        float(one.deviation)
        for network in (objective.model, smoothed.model)
        for one in network.modules()
        if isinstance(one, NoiseLayer)
    ]
    assert deviations == [sigma, sigma / 2]
    plain = smoothed_objective(smoothed_for_run(Run.open(root), dataset, CPU), 4)
    assert isinstance(plain, OwnNoise)
    _certify(root, dataset, Method(norm="l1"), sigma)
    made = _attack(root, dataset, plan=AttackPlan("linf", (0.0625,), ("fgsm",), ("adaptive",), draws=2), certificates="l1")
    assert (made.settings.noise.sigma, made.settings.method.norm) == (sigma, "l1")
    assert made.results["sizes"][0]["reach"] == 4.0, "64 coordinates of 0.0625: an l1 radius must cover d times the size"


def test_certificates_by_scores_are_no_line_for_votes(root: Path, dataset: Dataset) -> None:
    """The highest mean score may be another class than that of most votes: answers by votes cannot contradict it."""
    _certify(root, dataset, Method(norm="linf", statistic="scores", confidence="hoeffding"))
    made = _attack(root, dataset, plan=AttackPlan("linf", (0.0625,), ("fgsm",), ("paper",)), certificates="linf")
    assert (made.name, made.results["certified_by"]["source"]) == ("linf", "attacks.csv")
    verification = tp.verify(root)
    assert verification.ok, verification.problems


def test_attacks_are_compared_with_the_certificates_of_their_norm(root: Path, dataset: Dataset) -> None:
    plan = AttackPlan("linf", (0.0625,), ("fgsm",), ("paper",))
    assert _attack(root, dataset, plan=plan).settings.certificates == "linf-pixeldp"
    _certify(root, dataset, Method(norm="l2"))
    assert _attack(root, dataset, plan=plan).settings.certificates == "linf-pixeldp"
    with pytest.raises(RunError, match="other settings") as refused:
        _attack(root, dataset, plan=plan, certificates="l2", name="linf-pixeldp")
    assert "method.norm l2" in refused.value.wanted
    assert "method.bound tight" in refused.value.wanted
    _certify(root, dataset, Method(norm="linf"))
    made = _attack(root, dataset, plan=plan)
    assert (made.name, made.settings.certificates) == ("linf", "linf")
