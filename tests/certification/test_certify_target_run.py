"""A run certified with a target radius: recorded, resumable to the byte, never mixed with a full certification, verifiable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import twinproof as tp
from interruption import StopAfter
from twinproof.certification import run as certify_run_module
from twinproof.certification.method import Sampling
from twinproof.certification.radius import RadiusRule
from twinproof.certification.run import CertifiedRun
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.runs.run import Run

KEY = Key.from_seed(22)
FULL, TARGET = Sampling(n0=20, n=600, alpha=0.01), Sampling(n0=20, n=600, alpha=0.01, target_radius=0.1)
LIMIT = 30


@pytest.fixture
def root(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(certify_run_module._INPUTS_PER_BATCH_WITH_TARGET, "cpu", 8)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _certify(root: Path, dataset: Dataset, sampling: Sampling = TARGET, **options: Any) -> CertifiedRun:
    return tp.certify(Run.open(root), dataset, **{"sampling": sampling, "limit": LIMIT, "device": "cpu", "key": KEY, **options})


def test_what_is_recorded_verifies(root: Path, dataset: Dataset) -> None:
    made = _certify(root, dataset)
    record = json.loads((root / "certificates/l2/certificates.json").read_text())
    assert record["sampling"]["target_radius"] == 0.1
    assert [look["draws"] for look in record["looks"]] == [125, 250, 500, 600]
    assert sum(look["alpha"] for look in record["looks"]) == pytest.approx(0.01, rel=1e-12)
    assert len({one.draws for one in made.certificates}) > 1
    robustness = Run.open(root).robustness["l2"]
    assert dict(robustness.values)["target_radius"] == 0.1
    assert "union bound" in robustness.theorem
    assert tp.verify(root).problems == ()


def test_a_full_certification_says_that_all_draws_were_made(root: Path, dataset: Dataset) -> None:
    made = _certify(root, dataset, FULL)
    assert {one.draws for one in made.certificates} == {600}
    record = json.loads((root / "certificates/l2/certificates.json").read_text())
    assert (record["sampling"]["target_radius"], record["looks"]) == (None, [{"draws": 600, "alpha": 0.01}])
    assert "union bound" not in Run.open(root).robustness["l2"].theorem
    assert tp.verify(root).problems == ()


def test_planted_bounds_at_all_of_alpha_do_not_verify(root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certifier that looks several times but bounds with all of alpha is caught by the file it writes."""
    honest = RadiusRule.certified
    monkeypatch.setattr(RadiusRule, "certified", lambda rule, evidence, alpha: honest(rule, evidence, 0.01))
    _certify(root, dataset)
    assert any("radius is above" in problem.what for problem in tp.verify(root).problems)


@pytest.mark.parametrize("batches", [1, 3])
def test_an_interrupted_certification_goes_on_to_the_same_bytes(
    root: Path, trained: Path, dataset: Dataset, tmp_path: Path, batches: int
) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "whole"))
    _certify(other, dataset)
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, progress=StopAfter(batches))
    _certify(root, dataset, key=None)
    assert (root / "certificates/l2/certificates.csv").read_bytes() == (other / "certificates/l2/certificates.csv").read_bytes()


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (FULL, TARGET, "target_radius 0.1"),
        (TARGET, FULL, "target_radius None"),
        (TARGET, Sampling(20, 600, 0.01, 0.2), "target_radius 0.2"),
    ],
)
def test_another_target_is_another_certification(
    root: Path, dataset: Dataset, first: Sampling, second: Sampling, named: str
) -> None:
    _certify(root, dataset, first)
    with pytest.raises(RunError, match="other settings") as refused:
        _certify(root, dataset, second)
    assert named in refused.value.wanted
    assert "looks" not in refused.value.wanted, "what follows from the target needs no words"
    _certify(root, dataset, second, overwrite=True)
    assert tp.verify(root).problems == ()


def test_a_target_out_of_reach_is_refused_before_anything_is_touched(root: Path, dataset: Dataset) -> None:
    before = sorted((path.name, path.read_bytes()) for path in root.iterdir() if path.is_file())
    with pytest.raises(ConfigError, match="out of reach"):
        _certify(root, dataset, Sampling(20, 600, 0.01, 3.0))
    assert sorted((path.name, path.read_bytes()) for path in root.iterdir() if path.is_file()) == before
