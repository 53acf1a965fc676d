"""Certifying a run by interval bounds: what is written, resumed, shared by ranks, and refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from interval_runs import bounded as bounded
from interval_runs import figures as figures
from interval_runs import root as root
from small_runs import tiny

import twinproof as tp
from interruption import StopAfter
from rank_processes import run_ranks
from twinproof.certification import interval_run
from twinproof.certification.interval_run import IntervalCertifiedRun, certify_intervals, interval_certifications
from twinproof.certification.method import Method, Sampling, certifications
from twinproof.certification.run import CertifiedRun
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.evaluation.certified import LINF_RADII, summarize
from twinproof.runs.records import ABSTAIN, Certificate, format_deterministic, read_certificates
from twinproof.runs.run import Run

NAME = "linf-interval"
CSV = f"certificates/{NAME}/certificates.csv"


def test_every_line_has_the_networks_answer_and_a_radius(root: Path, figures: Dataset) -> None:
    run = Run.open(root)
    made = certify_intervals(run, figures, device="cpu")
    inputs = torch.from_numpy(figures.test.inputs.astype("float32")) / figures.levels
    assert [one.prediction for one in made.certificates] == run.model()(inputs).argmax(1).tolist()
    assert [one.label for one in made.certificates] == figures.test.labels.tolist()
    radii = [one.radius for one in made.certificates]
    assert len(radii) == len(figures.test)
    assert sum(radius > 0.001 for radius in radii) > 0.7 * len(radii)
    assert ABSTAIN not in {one.prediction for one in made.certificates}
    assert (root / CSV).read_text().splitlines()[0] == "index,label,prediction,radius,correct"
    assert made.images_per_second > 0


def test_settings_and_promise_name_no_draws(root: Path, figures: Dataset) -> None:
    made = certify_intervals(Run.open(root), figures, limit=20, device="cpu")
    record = json.loads((root / f"certificates/{NAME}/certificates.json").read_text())
    assert not {"sampling", "noise", "looks", "resolution"} & set(record)
    assert record["method"] == {"norm": "linf", "bound": "interval"}
    assert (record["levels"], record["step"], record["largest_radius"]) == (figures.levels, 2.0**-20, 1.0)
    assert record["network"]["arithmetic"] == "float32"
    promise = json.loads((root / "run.json").read_text())["guarantees"]["robustness"][NAME]
    assert (promise["status"], promise["values"]) == ("proven", {"largest_radius": 1.0, "norm": "linf", "bound": "interval"})
    assert "with certainty" in promise["promise"]
    assert any("TF32" in one for one in promise["assumptions"])
    assert any("lies in [0, 1]" in one for one in promise["assumptions"])
    summary = summarize(made.certificates, made.settings)
    assert (summary.n, summary.alpha) == (None, None)
    assert [radius for radius, _ in summary.certified] == list(LINF_RADII)
    assert (list(interval_certifications(root)), certifications(root)) == ([NAME], {})


def test_interrupted_work_ends_with_the_same_bytes(
    bounded: Path, figures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_run, "_INPUTS_PER_BATCH", {"cpu": 16})
    whole, cut = (Path(shutil.copytree(bounded, tmp_path / name)) for name in ("whole", "cut"))
    certify_intervals(Run.open(whole), figures, limit=60, device="cpu")
    before = (cut / "run.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        certify_intervals(Run.open(cut), figures, limit=60, device="cpu", progress=StopAfter(2))
    assert (cut / "run.json").read_bytes() == before, "nothing is promised before all of it is there"
    again = StopAfter(-1)
    certify_intervals(Run.open(cut), figures, limit=60, device="cpu", progress=again)
    assert again.started == ("certifying", 60, 32)
    assert (cut / CSV).read_bytes() == (whole / CSV).read_bytes()
    written = (cut / CSV).stat().st_mtime_ns
    certify_intervals(Run.open(cut), figures, limit=60, device="cpu")
    assert (cut / CSV).stat().st_mtime_ns == written, "what is complete is read"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ranks_make_the_same_certificates(
    bounded: Path, figures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_run, "_INPUTS_PER_BATCH", {"cpu": 16})
    one, many = (Path(shutil.copytree(bounded, tmp_path / name)) for name in ("one", "many"))
    certify_intervals(Run.open(one), figures, limit=60, device="cpu")
    ends = run_ranks(
        2,
        lambda ranks: len(certify_intervals(Run.open(many), figures, limit=60, device="cpu", ranks=ranks).certificates),
    )
    assert [ended.value for ended in ends] == [60, 60]
    assert (many / CSV).read_bytes() == (one / CSV).read_bytes()


def test_other_settings_need_a_word(root: Path, figures: Dataset) -> None:
    run = Run.open(root)
    certify_intervals(run, figures, limit=10, device="cpu")
    with pytest.raises(RunError, match="other settings"):
        certify_intervals(run, figures, limit=11, device="cpu")
    assert len(certify_intervals(run, figures, limit=11, device="cpu", overwrite=True).certificates) == 11
    certify_intervals(run, figures, limit=5, device="cpu", name="few")
    assert list(interval_certifications(root)) == ["few", NAME]


def test_the_two_kinds_keep_apart(root: Path, figures: Dataset) -> None:
    run, sampling = Run.open(root), Sampling(10, 100, 0.01)
    tp.certify(run, figures, sampling=sampling, limit=3, device="cpu")
    certify_intervals(run, figures, limit=3, device="cpu")
    assert (list(certifications(root)), list(interval_certifications(root))) == (["l2"], [NAME])
    with pytest.raises(RunError, match="another kind"):
        certify_intervals(run, figures, limit=3, device="cpu", name="l2")
    certify_intervals(run, figures, limit=3, device="cpu", name="l2", overwrite=True)
    assert certifications(root) == {}


def test_that_bound_certifies_without_draws(root: Path, figures: Dataset) -> None:
    made = tp.certify(Run.open(root), figures, method=Method("linf", "interval"), limit=6, device="cpu")
    assert isinstance(made, IntervalCertifiedRun)
    assert made.certificates == certify_intervals(Run.open(root), figures, limit=6, device="cpu").certificates


@pytest.mark.parametrize(
    ("method", "asked", "got"),
    [
        (Method("linf", "interval"), {"sampling": Sampling(10, 100, 0.01)}, "sampling"),
        (Method("linf", "interval"), {"sigma": 0.5}, "sigma"),
        (Method("linf", "interval", "scores", "hoeffding"), {}, "statistic"),
        (Method("l2", "interval"), {}, "l2 with interval"),
    ],
)
def test_draws_and_other_norms_have_no_meaning_there(
    root: Path, figures: Dataset, method: Method, asked: dict[str, Any], got: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        tp.certify(Run.open(root), figures, method=method, device="cpu", **asked)
    assert got in str(refused.value.got)
    assert not (root / "certificates").exists()


def test_a_run_of_that_recipe_is_certified_without_draws_by_itself(tmp_path: Path) -> None:
    """Refutes smoothing it at a deviation that it was never trained for: its radii would be useless."""
    run = tp.train(tiny("digits", recipe="interval", model="relu-mlp", steps=2), tmp_path / "run")
    made = tp.certify(run, limit=4, device="cpu")
    assert isinstance(made, IntervalCertifiedRun)
    assert list(interval_certifications(run.root)) == [made.name] == [NAME]
    asked: list[dict[str, Any]] = [{"sampling": Sampling(5, 20, 0.1)}, {"sigma": 0.5}, {"method": Method()}]
    for number, one in enumerate(asked):
        few = {"sampling": Sampling(5, 20, 0.1)} | one
        assert isinstance(tp.certify(run, limit=2, device="cpu", name=f"drawn-{number}", **few), CertifiedRun)


def test_a_network_without_bounds_is_refused_and_nothing_written(trained: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    with pytest.raises(ModelError) as refused:
        certify_intervals(Run.open(root), dataset, device="cpu")
    assert (refused.value.where, refused.value.got) == ("2", "Tanh")
    assert not (root / "certificates").exists()
    with pytest.raises(ConfigError):
        certify_intervals(Run.open(root), dataset, limit=0, device="cpu")


def test_lines_without_votes_read_back(tmp_path: Path) -> None:
    lines = [Certificate(0, 2, 2, votes=0, top=2, radius=0.1234567), Certificate(1, 0, 3, votes=0, top=3, radius=0.0)]
    path = tmp_path / "certificates.csv"
    path.write_bytes(format_deterministic(lines))
    assert path.read_text().splitlines()[1:] == ["0,2,2,0.123456,1", "1,0,3,0.000000,0"]
    assert [(one.index, one.top, one.votes, one.radius) for one in read_certificates(path)] == [
        (0, 2, 0, 0.123456),
        (1, 3, 0, 0.0),
    ]
