"""How votes were counted is recorded and kept: the form of the network, its arithmetic, shared noise, a target."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import twinproof as tp
from interruption import StopAfter
from twinproof.certification import run as certify_run_module
from twinproof.certification.lowering import AS_GIVEN
from twinproof.certification.method import Sampling
from twinproof.certification.radius import RadiusRule
from twinproof.certification.run import CertifiedRun
from twinproof.certification.shared_noise import SharedNoiseCounter
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import BaseClassifier, base_classifier
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.runs.run import Run

KEY, LIMIT = Key.from_seed(23), 30
OWN, SHARED = Sampling(n0=20, n=300, alpha=0.01), Sampling(n0=20, n=300, alpha=0.01, shared_noise=True)
FULL, TARGET = Sampling(n0=20, n=600, alpha=0.01), Sampling(n0=20, n=600, alpha=0.01, target_radius=0.1)


@pytest.fixture
def root(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("_INPUTS_PER_BATCH_OF_SHARED_NOISE", "_INPUTS_PER_BATCH_WITH_TARGET"):
        monkeypatch.setitem(getattr(certify_run_module, name), "cpu", 8)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _certify(root: Path, dataset: Dataset, sampling: Sampling = SHARED, **options: Any) -> CertifiedRun:
    settings = {"sampling": sampling, "limit": LIMIT, "device": "cpu", "key": KEY, **options}
    made: CertifiedRun = tp.certify(Run.open(root), dataset, **settings)
    return made


@pytest.mark.parametrize("sampling", [SHARED, replace(SHARED, target_radius=0.1)], ids=["all draws", "target"])
def test_a_run_with_shared_noise_says_so_and_verifies(root: Path, dataset: Dataset, sampling: Sampling) -> None:
    made = _certify(root, dataset, sampling)
    record = json.loads((root / "certificates/l2/certificates.json").read_text())
    assert record["sampling"]["shared_noise"] is True
    assert record["network"]["arithmetic"] == "float32"
    assert any("fail together" in line for line in Run.open(root).robustness["l2"].assumptions)
    assert tp.verify(root).problems == ()
    assert len({one.votes for one in made.certificates}) > 3


def test_shared_noise_is_used_where_it_is_asked_for(root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [one.votes for one in _certify(root, dataset, OWN).certificates]
    monkeypatch.setattr(SharedNoiseCounter, "count", None)
    assert [one.votes for one in _certify(root, dataset, OWN, overwrite=True).certificates] == own
    with pytest.raises(TypeError):
        _certify(root, dataset, SHARED, overwrite=True)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("sampling", [SHARED, TARGET], ids=["shared noise", "target"])
def test_an_interrupted_certification_goes_on_to_the_same_bytes(
    root: Path, trained: Path, dataset: Dataset, tmp_path: Path, sampling: Sampling, batches: int
) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "whole"))
    _certify(other, dataset, sampling)
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, sampling, progress=StopAfter(batches))
    _certify(root, dataset, sampling, key=None)
    assert (root / "certificates/l2/certificates.csv").read_bytes() == (other / "certificates/l2/certificates.csv").read_bytes()


def test_shared_and_own_noise_are_never_mixed(root: Path, dataset: Dataset) -> None:
    _certify(root, dataset)
    with pytest.raises(RunError, match="other settings") as refused:
        _certify(root, dataset, OWN)
    assert refused.value.wanted == "sampling.shared_noise False"


def test_an_interrupted_certification_keeps_its_form(root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is faster today, the votes still to be counted are those of the form that the first ones were counted in."""
    asked: list[str | None] = []

    def watched(*what: Any, form: str | None = None, **more: Any) -> BaseClassifier:
        asked.append(form)
        return base_classifier(*what, form=form, **more)

    monkeypatch.setattr("twinproof.certification.smoothed.base_classifier", watched)
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, OWN, progress=StopAfter(1))
    _certify(root, dataset, OWN, key=None)
    assert asked == [None, json.loads((root / "certificates/l2/certificates.json").read_text())["network"]["form"]]


def test_a_form_found_for_the_other_kind_of_noise_is_not_used(root: Path, dataset: Dataset) -> None:
    smoothed = smooth(Run.open(root).model(), 0.25, levels=dataset.levels)
    inputs = dataset.test.inputs[:5]
    for sampling, other in ((OWN, SHARED), (SHARED, OWN)):
        mixed = replace(smoothed, base=smoothed.base_for(inputs, other))
        assert mixed.certify(inputs, sampling=sampling, key=KEY) == smoothed.certify(inputs, sampling=sampling, key=KEY)


def test_the_votes_are_those_of_the_network_as_given(root: Path, dataset: Dataset) -> None:
    """Another form may differ in last bits, which move few votes; here it is asked for by name."""
    run = Run.open(root)
    made = _certify(root, dataset, OWN)
    settings = made.settings
    smoothed = smooth(run.model(), settings.noise.sigma, levels=settings.noise.levels)
    given = replace(smoothed, base=smoothed.base_for(dataset.test.inputs[:1], OWN, form=AS_GIVEN))
    certified = given.certify(dataset.test.inputs[:LIMIT], sampling=OWN, key=KEY)
    assert max(abs(one.votes - other.votes) for one, other in zip(certified, made.certificates, strict=True)) <= 1


def test_a_target_is_recorded_and_verifies(root: Path, dataset: Dataset) -> None:
    made = _certify(root, dataset, TARGET)
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
    _certify(root, dataset, TARGET)
    assert any("radius is above" in problem.what for problem in tp.verify(root).problems)


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
