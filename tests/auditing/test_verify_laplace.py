"""Runs with Laplace noise by the bound ``best``, and with two Gaussian noises: certified, verified, and lies that are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_runs import count_each_ledger_once
from torch import nn

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.laplace_shifts import EqualShifts, GaussianShift
from twinproof.certification.method import Method, Sampling, find_certification
from twinproof.data import Dataset, from_arrays
from twinproof.errors import ConfigError
from twinproof.evaluation.protocols import AttackPlan
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import BOTH_PLACES, add_noise, with_two_noises
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_verify.laplace import equal_shifts_reach, gaussian_reach

SAMPLING = Sampling(20, 200, 0.01)
SHAPE = (1, 4, 4)
PLACES = [(Law.LAPLACE, "input"), (Law.LAPLACE, "first-layer"), (Law.LAPLACE, BOTH_PLACES), (Law.GAUSSIAN, BOTH_PLACES)]
OF_LAPLACE = PLACES[:3]


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


@pytest.fixture(scope="module")
def run_of(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Law, str], Run]]:
    """Each run is trained once, and epsilon, which other tests check, is counted once for its ledger."""

    @cache
    def trained(law: Law, place: str) -> Run:
        settings = {"recipe": "dpsgd", "noise_multiplier": 1.0, "delta": 1e-3, "steps": 6, "batch_size": 20, "seed": 2}
        return train(settings, tmp_path_factory.mktemp("laplace") / "run", dataset=dataset, network=_network(law, place))

    with pytest.MonkeyPatch.context() as patched:
        count_each_ledger_once(patched)
        yield trained


@pytest.fixture(params=PLACES, ids=[f"{law} {place}" for law, place in PLACES])
def trained(request: pytest.FixtureRequest, run_of: Callable[[Law, str], Run]) -> Run:
    return run_of(*request.param)


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


@pytest.mark.parametrize(
    ("trained", "lie"),
    [*product(OF_LAPLACE, LIES), *product(OF_LAPLACE[1:], OF_LAYERS)],
    indirect=["trained"],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_lies_about_the_other_norm_are_found(trained: Run, dataset: Dataset, lie: str) -> None:
    run = _certified(trained, dataset, Method(norm="linf"))
    found = find_certification(run.root, name="linf")
    assert found is not None
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


@pytest.mark.parametrize("trained", OF_LAPLACE, indirect=True)
def test_what_is_not_tight_is_not_called_so(trained: Run, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="this bound is not tight here"):
        _certified(trained, dataset, Method(norm="linf", bound="tight"))


@pytest.mark.parametrize("trained", OF_LAPLACE, indirect=True)
def test_what_earlier_records_call_tight_is_read_and_verified_as_what_it_was(
    trained: Run, dataset: Dataset, tmp_path: Path
) -> None:
    """Pure epsilon under its former name, without the keys that were added, and with the promise of that time."""
    run = _certified(trained, dataset, Method(norm="linf", bound="pure-epsilon"))
    shutil.copytree(run.root, tmp_path / "run")
    name, path = "linf-pure-epsilon", tmp_path / "run" / "certificates" / "linf-pure-epsilon" / "certificates.json"
    settings = json.loads(path.read_text())
    settings["method"]["bound"] = "tight"
    del settings["noise"]["in_l2"]
    path.write_text(json.dumps(settings))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    del record["guarantees"]["robustness"][name]["values"]["bound"]
    record["files"][f"certificates/{name}/certificates.json"]["sha256"] = sha256(path.read_bytes()).hexdigest()
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    found = verify_run(tmp_path / "run", network=run.network)
    assert found.ok, found.problems
    former = find_certification(tmp_path / "run", name=name)
    assert former is not None
    assert (former.settings.method.bound, former.settings.noise.in_l2) == ("tight", None)
    reopened = Run.open(tmp_path / "run", run.network)
    plan = AttackPlan(norm="linf", sizes=(0.01,), attacks=("fgsm",), protocols=("paper",), steps=2, draws=2)
    tp.attack(reopened, dataset, plan=plan, sampling=SAMPLING, certificates=name, limit=2, device="cpu", key=Key.from_seed(4))
    found = verify_run(tmp_path / "run", network=run.network)
    assert found.ok, found.problems


@pytest.mark.parametrize("dimension", [1, 3, 64, 784])
def test_both_programs_find_the_same_sizes(dimension: int) -> None:
    generator = np.random.default_rng(dimension)
    low = generator.uniform(0.5, 0.9999, 25)
    high = np.concatenate([1 - low[:15], (1 - low[15:]) * generator.uniform(0, 1, 10)])
    certified, verified = EqualShifts(dimension).reach(low, high), equal_shifts_reach(dimension, low, high)
    np.testing.assert_allclose(certified, verified, rtol=0, atol=1e-10)
    np.testing.assert_allclose(GaussianShift().reach(low, high), gaussian_reach(low, high), rtol=0, atol=1e-10)


@pytest.mark.parametrize("trained", OF_LAPLACE[:1], indirect=True)
def test_in_l1_at_the_input_tight_may_be_said(trained: Run, dataset: Dataset) -> None:
    """Under a name of its own, since it is not what is asked for by default; with the radii of the best bound."""
    run = _certified(trained, dataset, Method(norm="l1"))
    run = _certified(run, dataset, Method(norm="l1", bound="tight"))
    best, tight = (find_certification(run.root, name=name) for name in ("l1", "l1-tight"))
    assert best is not None
    assert tight is not None
    assert [one.radius for one in tight.certificates] == [one.radius for one in best.certificates]
    verified = verify_run(run.root, network=run.network)
    assert verified.ok, verified.problems
