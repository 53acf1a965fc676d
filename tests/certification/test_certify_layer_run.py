"""Certifying runs whose network has noise of its own: recorded as it was made, resumable to the byte, with all methods."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import twinproof as tp
from interruption import StopAfter
from twinproof.certification.method import Method, Sampling
from twinproof.certification.run import CertifiedRun, norm_of_run, smoothed_for_run
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.privacy.operator_norm import operator_norm
from twinproof.runs.records import read_certificates
from twinproof.runs.run import Run

KEY, SAMPLING, LIMIT, CPU = Key.from_seed(21), Sampling(n0=20, n=200, alpha=0.01), 20, torch.device("cpu")
SPREADS = {"uniform": UniformSpread, "random": lambda shape: RandomSpread(shape, 0.3)}


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _give_noise(
    monkeypatch: pytest.MonkeyPatch,
    dataset: Dataset,
    law: Law,
    place: Place,
    spread: Any = UniformSpread,
    deviation: float = 0.25,
) -> None:
    """Every run opened from now on has the trained network with noise in it, as a recipe would have put it there."""
    plain = Run.model

    def model(self: Run, device: torch.device | str = "cpu") -> nn.Module:
        return add_noise(
            plain(self, device), dataset.shape, place, lambda shape: NoiseLayer(shape, law, deviation, spread(shape))
        )

    monkeypatch.setattr(Run, "model", model)


def _certify(root: Path, dataset: Dataset, **options: Any) -> CertifiedRun:
    settings = {"sampling": SAMPLING, "limit": LIMIT, "device": "cpu", "key": KEY, **options}
    made: CertifiedRun = tp.certify(Run.open(root), dataset, **settings)
    return made


@pytest.mark.parametrize("law", list(Law))
def test_noise_behind_the_first_layer_is_recorded(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, law: Law
) -> None:
    network = Run.open(root).model()
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
    _give_noise(monkeypatch, dataset, law, Place.FIRST_LAYER)
    made = _certify(root, dataset, method=Method(norm="linf"))
    record = json.loads((root / "certificates/linf/certificates.json").read_text())
    noise = record["noise"]
    target, cells = ("l2", 17) if law is Law.GAUSSIAN else ("l1", 72)
    width = first.out_features
    assert (noise["law"], noise["place"]) == (law, "first-layer")
    bound = "tight" if law is Law.GAUSSIAN else "best"
    assert tuple(record["method"].values()) == (bound, "clopper-pearson", "linf", "complement", "votes")  # sorted by name
    if law is Law.LAPLACE:
        in_l2 = operator_norm(first, (first.in_features,), "linf", "l2", np.ones(width)).value
        assert in_l2 <= noise["in_l2"]["operator_norm"] <= in_l2 * (1 + 1e-9)
        assert 0 < noise["in_l2"]["slack"] < noise["slack"]
    else:
        assert noise["in_l2"] is None
    assert (record["network"]["classes"], record["resolution"], noise["dimension"]) == (10, 1, width)
    assert (noise["sigma"], noise["levels"]) == (0.25, dataset.levels)
    wanted = operator_norm(first, (first.in_features,), "linf", target, np.ones(width))
    assert wanted.value <= noise["operator_norm"] <= wanted.value * (1 + 1e-9)
    assert noise["operator_norm_method"] == wanted.method
    assert noise["slack"] >= noise["grid"] * (width**0.5 if law is Law.GAUSSIAN else width)
    assert noise["tau"] == pytest.approx(width * (cells * 0.25 / noise["grid"] * 2.0**-64 + 2.0**-49) + 2.0**-36)
    assert (root / "certificates/linf/certificates.csv").read_text().splitlines()[0].endswith(",correct,draws")
    robustness = next(iter(Run.open(root).robustness.values()))
    assert robustness.status is Status.PROVEN
    assert "linf" in robustness.promise
    assert "operator norm" in robustness.theorem
    values = dict(robustness.values)
    assert (values["place"], values["operator_norm"], values["norm"]) == ("first-layer", noise["operator_norm"], "linf")
    assert len(made.certificates) == LIMIT


METHODS = [Method(statistic="scores", confidence="empirical-bernstein"), Method(runner_up="union"), Method(norm="l1")]


@pytest.mark.parametrize("spread", list(SPREADS))
@pytest.mark.parametrize("method", METHODS, ids=["scores", "union", "plain"])
def test_an_interrupted_certification_goes_on_to_the_same_bytes(
    root: Path, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, spread: str
) -> None:
    # Two runs may find another form of the network the fastest, and scores show its last bits; a resumed one keeps its own.
    monkeypatch.setattr("twinproof.certification.lowering._Task.fastest", lambda task, forms, rows: forms[-1])
    _give_noise(monkeypatch, dataset, Law.GAUSSIAN, Place.FIRST_LAYER, SPREADS[spread])
    whole = Path(shutil.copytree(root, tmp_path / "whole"))
    _certify(whole, dataset, method=method)
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, method=method, progress=StopAfter(2))
    torch.manual_seed(3)
    made = _certify(root, dataset, method=method, key=None)
    csv = f"certificates/{made.name}/certificates.csv"
    assert (root / csv).read_bytes() == (whole / csv).read_bytes()
    assert len({one.votes for one in made.certificates}) > 1


@pytest.mark.parametrize("method", METHODS[:2], ids=["scores", "union"])
def test_more_evidence_is_written_where_it_is_needed(root: Path, dataset: Dataset, method: Method) -> None:
    made = _certify(root, dataset, method=method)
    header = (root / "certificates/l2/certificates.csv").read_text().splitlines()[0]
    assert header.endswith(",draws,squares,runner_up,runner_up_squares")
    assert read_certificates(root / "certificates/l2/certificates.csv") == made.certificates
    resolution = made.settings.resolution
    assert resolution == (2**20 if method.statistic == "scores" else 1)
    for one in made.certificates:
        assert 0 < one.votes <= resolution * SAMPLING.n
        assert one.squares <= one.votes * resolution
        assert one.votes + one.runner_up <= resolution * SAMPLING.n
        assert (one.runner_up > 0) == (method.runner_up == "union")
    assert len({one.votes for one in made.certificates}) > 1


def test_a_refuted_bound_promises_nothing(root: Path, dataset: Dataset) -> None:
    _certify(root, dataset, method=Method(bound="published"))
    robustness = next(iter(Run.open(root).robustness.values()))
    assert robustness.status is Status.REFUTED
    assert "Nothing is promised" in robustness.promise
    assert "epsilon" in robustness.reason


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("place", list(Place))
def test_tight_radii_are_at_least_those_of_hgm_on_the_same_draws(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, place: Place, norm: str
) -> None:
    _give_noise(monkeypatch, dataset, Law.GAUSSIAN, place)
    made = [
        _certify(root, dataset, method=Method(norm=norm, bound=bound), overwrite=True).certificates
        for bound in ("tight", "hgm")
    ]
    assert [one.votes for one in made[0]] == [one.votes for one in made[1]]
    assert all(tight.radius >= hgm.radius >= 0 for tight, hgm in zip(*made, strict=True))
    assert any(tight.radius > 0 for tight in made[0])


def test_a_target_with_scores_is_refused_before_anything_is_touched(root: Path, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="plain votes only"):
        _certify(root, dataset, method=METHODS[0], sampling=Sampling(20, 200, 0.01, 0.1))
    assert not (root / "certificates").exists()


def test_the_norm_of_a_run_is_that_of_its_noise_layer(root: Path, dataset: Dataset) -> None:
    run = Run.open(root)
    assert norm_of_run(run) == smoothed_for_run(run, dataset, CPU).norm == "l2"
    for stored, norm in (({"norm": "linf"}, "linf"), (None, "l2")):
        run.record["config"]["noise_layer"] = stored
        assert norm_of_run(run) == norm
    assert smoothed_for_run(run, dataset, CPU, method=Method(norm="l1")).norm == "l1"


def test_sigma_is_the_layers_unless_another_one_is_asked_for(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert smoothed_for_run(Run.open(root), dataset, CPU).noise.sigma == 0.25, "the run's"
    _give_noise(monkeypatch, dataset, Law.LAPLACE, Place.FIRST_LAYER, deviation=0.7)
    assert smoothed_for_run(Run.open(root), dataset, CPU).noise.sigma == 0.7
    assert smoothed_for_run(Run.open(root), dataset, CPU, sigma=0.3).noise.sigma == 0.3


@pytest.mark.parametrize("spread", ["fixed", "random"])
def test_unequal_noise_at_the_input_is_recorded(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, spread: str
) -> None:
    size = int(np.prod(dataset.shape))

    def unequal(shape: tuple[int, ...]) -> Spread:
        return FixedSpread(shape, np.linspace(0.5, 1.5, size)) if spread == "fixed" else RandomSpread(shape, 0.3)

    _give_noise(monkeypatch, dataset, Law.GAUSSIAN, Place.INPUT, unequal)
    _certify(root, dataset, method=Method(norm="linf"))
    noise = json.loads((root / "certificates/linf/certificates.json").read_text())["noise"]
    least = unequal(tuple(dataset.shape)).least_scales()
    wanted = float(np.sqrt((least**-2.0).sum()))
    assert wanted <= noise["operator_norm"] <= wanted * (1 + 1e-9)
    assert (noise["place"], noise["operator_norm_method"], noise["dimension"]) == ("unequal-input", "diagonal", size)
    assert (noise["sigma"], noise["levels"]) == (0.25, dataset.levels)
    assert noise["grid"] * size**0.5 < noise["slack"] <= 0.01 * noise["sigma"]
    robustness = next(iter(Run.open(root).robustness.values()))
    assert robustness.status is Status.PROVEN
    assert "a scale of its own in every coordinate" in robustness.theorem
