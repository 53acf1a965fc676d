"""Runs with Laplace noise by the bound ``best``, and with two Gaussian noises: certified, verified, and lies that are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Method, Sampling
from twinproof.certification.record import find_certification
from twinproof.data import Dataset, from_arrays
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import BOTH_PLACES, add_noise, with_two_noises
from twinproof.recipes.train import train
from twinproof.runs.run import Run

SAMPLING = Sampling(20, 200, 0.01)
SHAPE = (1, 4, 4)
PLACES = [(Law.LAPLACE, "input"), (Law.LAPLACE, "first-layer"), (Law.LAPLACE, BOTH_PLACES), (Law.GAUSSIAN, BOTH_PLACES)]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    generator = np.random.default_rng(3)
    labels = np.arange(90) % 3
    inputs = generator.integers(0, 60, (90, 4, 4), dtype=np.uint8) + (labels * 90).astype(np.uint8)[:, None, None]
    return from_arrays("memory", {"x_train": inputs[:60], "y_train": labels[:60], "x_test": inputs[60:], "y_test": labels[60:]})


def _network(law: Law, place: str) -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(8, 3))
    if place == BOTH_PLACES:
        return with_two_noises(inner, SHAPE, 0.05, 0.05, law)

    def noise(shape: tuple[int, ...]) -> NoiseLayer:
        uneven = FixedSpread(shape, np.linspace(0.5, 1.5, int(np.prod(shape))))
        return NoiseLayer(shape, law, 0.05, UniformSpread(shape) if place == Place.INPUT else uneven)

    return add_noise(inner, SHAPE, Place(place), noise)


@pytest.fixture(scope="module", params=PLACES, ids=[f"{law} {place}" for law, place in PLACES])
def trained(request: pytest.FixtureRequest, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {"recipe": "dpsgd", "noise_multiplier": 1.0, "delta": 1e-3, "steps": 6, "batch_size": 20, "seed": 2}
    return train(settings, tmp_path_factory.mktemp("laplace") / "run", dataset=dataset, network=_network(*request.param))


def _certified(trained: Run, dataset: Dataset, method: Method) -> Run:
    tp.certify(trained, dataset, sampling=SAMPLING, method=method, limit=12, overwrite=True, device="cpu", key=Key.from_seed(1))
    return Run.open(trained.root, trained.network)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_the_best_bound_is_certified_verified_and_never_below_the_others(trained: Run, dataset: Dataset, norm: str) -> None:
    run = _certified(trained, dataset, Method(norm=norm))
    best = find_certification(run.root, name=norm)
    assert best is not None
    noise, laplace = best.settings.noise, best.settings.noise.law == "laplace"
    assert (best.settings.method.bound, noise.in_l2 is not None) == (("best", True) if laplace else ("tight", False))
    assert run.robustness[norm].status is Status.PROVEN
    verified = verify_run(run.root, network=run.network)
    assert verified.ok, verified.problems
    if laplace:
        pure = _certified(run, dataset, Method(norm=norm, bound="pure-epsilon"))
        others = find_certification(pure.root, name=f"{norm}-pure-epsilon")
        assert others is not None
        pairs = list(zip(best.certificates, others.certificates, strict=True))
        assert all(one.votes == other.votes and one.radius >= other.radius for one, other in pairs)
        assert (norm == "l1") or any(one.radius > other.radius for one, other in pairs)
        verified = verify_run(pure.root, network=pure.network)
        assert verified.ok, verified.problems


def _noise(**changes: float | None) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["noise"]["in_l2"].update(changes)


def _half(record: dict[str, Any]) -> None:
    record["noise"]["in_l2"]["operator_norm"] /= 2


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "half the norm": (_half, "in_l2.operator_norm is"),
    "no norm": (lambda record: record["noise"].update(in_l2=None), "in_l2 belongs to the bound best"),
    "another bound's name": (lambda record: record["method"].update(bound="pure-epsilon"), "in_l2 belongs to the bound best"),
    "the former name": (lambda record: (record["method"].update(bound="tight"), record["noise"].update(in_l2=None)), "above"),
}
OF_LAYERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "nothing for rounding": (_noise(slack=0.0), "in_l2.slack is understated"),
    "no rounding in the norm": (_noise(slackless_norm=1e-3), "slack"),
}


def _told(run: Run, path: Path, change: Callable[[str], str]) -> list[str]:
    honest = path.read_text()
    try:
        path.write_text(change(honest))
        return [problem.what for problem in verify_run(run.root, network=run.network).problems]
    finally:
        path.write_text(honest)


@pytest.mark.parametrize("lie", [*LIES, *OF_LAYERS])
def test_lies_about_the_other_norm_are_found(trained: Run, dataset: Dataset, lie: str) -> None:
    run = _certified(trained, dataset, Method(norm="linf"))
    found = find_certification(run.root, name="linf")
    assert found is not None
    if found.settings.noise.law == "gaussian" or (lie in OF_LAYERS and found.settings.noise.place == "input"):
        pytest.skip("nothing to lie about")
    change, match = {**LIES, **OF_LAYERS}[lie]

    def lied(text: str) -> str:
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    assert any(match in what for what in _told(run, found.path, lied))


@pytest.mark.parametrize(("factor", "match"), [(1.01, "the radius is above"), (0.99, "the radius is below")])
def test_radii_a_hundredth_off_are_found(trained: Run, dataset: Dataset, factor: float, match: str) -> None:
    run = _certified(trained, dataset, Method(norm="linf"))
    found = find_certification(run.root, name="linf")
    assert found is not None

    def stretched(text: str) -> str:
        header, *lines = text.splitlines()
        cells = [line.split(",") for line in lines]
        place = header.split(",").index("radius")
        for line in cells:
            line[place] = f"{float(line[place]) * factor:.6f}"
        return "\n".join([header, *(",".join(line) for line in cells)]) + "\n"

    assert any(match in what for what in _told(run, found.csv, stretched))


def test_what_is_not_tight_is_not_called_so(trained: Run, dataset: Dataset) -> None:
    if trained.network is None or not any(
        isinstance(module, NoiseLayer) and module.law is Law.LAPLACE for module in trained.network.modules()
    ):
        pytest.skip("Gaussian noise")
    with pytest.raises(ConfigError, match="this bound is not tight here"):
        _certified(trained, dataset, Method(norm="linf", bound="tight"))
