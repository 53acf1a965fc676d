"""Certifying a run: resumable to the byte, refused without harm, recorded under its name when complete."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import twinproof as tp
from interruption import StopAfter
from twinproof.certification.method import Method, Sampling
from twinproof.certification.promise import certified_promise
from twinproof.certification.run import CertifiedRun
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import NoisyRows, VoteCounter
from twinproof.data.record import Dataset, Split
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.files import sha256_file
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.runs.layout import read_run_json
from twinproof.runs.run import Run
from work_settings import CERTIFICATES, changed

KEY = Key.from_seed(21)
SAMPLING = Sampling(n0=20, n=120, alpha=0.01)
LIMIT = 30  # three batches of 8 and one of 6
CSV, SETTINGS = "certificates/l2/certificates.csv", "certificates/l2/certificates.json"


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _certify(root: Path, dataset: Dataset, **options: Any) -> CertifiedRun:
    settings = {"sampling": SAMPLING, "limit": LIMIT, "device": "cpu", "key": KEY, **options}
    made: CertifiedRun = tp.certify(tp.open(root), dataset, **settings)
    return made


def _content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def certified(trained: Path, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with certificates; not to be changed."""
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run"))
    _certify(root, dataset)
    return root


@pytest.fixture
def copied(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


def test_a_certified_run_is_recorded(trained: Path, root: Path, dataset: Dataset) -> None:
    made, before = _certify(root, dataset), read_run_json(trained)
    record, settings = read_run_json(root), json.loads((root / SETTINGS).read_text())
    (robustness,) = Run.open(root).robustness.values()
    assert (made.name, robustness.status) == ("l2", Status.PROVEN)
    largest = made.settings.largest_radius
    assert dict(robustness.values) == {"sigma": 0.25, "alpha": 0.01, "n": 120, "largest_radius": largest, "norm": "l2"}
    assert len(robustness.assumptions) >= 5
    assert {name: record["files"][name] for name in (SETTINGS, CSV)} == {
        name: {"sha256": sha256_file(root / name)} for name in (SETTINGS, CSV)
    }
    untouched = set(before) - {"files", "guarantees"}
    assert {key: record[key] for key in untouched} == {key: before[key] for key in untouched}
    assert record["guarantees"]["privacy"] == before["guarantees"]["privacy"]
    assert (settings["format"], settings["state"], settings["key"]) == (3, "complete", KEY.secret.hex())
    assert settings["network"]["model_sha256"] == sha256_file(root / "model.safetensors")
    assert [one.index for one in made.certificates] == list(range(LIMIT))
    assert [one.label for one in made.certificates] == dataset.test.labels[:LIMIT].tolist()
    assert made.images_per_second > 0


def test_the_lines_are_those_of_the_smoothed_classifier(certified: Path, dataset: Dataset) -> None:
    made = _certify(certified, dataset).certificates
    smoothed = smooth(Run.open(certified).model(), 0.25, levels=dataset.levels)
    for first in range(0, LIMIT, 8):
        rows = slice(first, min(first + 8, LIMIT))
        labels = dataset.test.labels[rows].tolist()
        again = smoothed.certify(dataset.test.inputs[rows], labels, sampling=SAMPLING, key=KEY, first_index=first)
        assert made[rows] == again


@pytest.mark.parametrize("batches", [1, 4])
def test_an_interrupted_certification_is_resumed_to_the_same_bytes(
    root: Path, dataset: Dataset, certified: Path, batches: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, progress=StopAfter(batches))
    assert Run.open(root).robustness == {}
    progress = StopAfter(-1)
    made = _certify(root, dataset, key=None, progress=progress)
    assert progress.started == ("certifying", LIMIT, min(8 * batches, LIMIT))
    assert made.settings.key == KEY.secret.hex(), "the key of the earlier work is taken over"
    assert (root / CSV).read_bytes() == (certified / CSV).read_bytes()
    assert Run.open(root).robustness["l2"].status is Status.PROVEN


_KILLED = """
import os, signal, sys
from pathlib import Path
import twinproof as tp
from twinproof.certification.smoothed import Sampling
from twinproof.progress import Silent
from twinproof.keys import Key
from twinproof.runs.run import Run

class Kill(Silent):
    batches = 0
    def advance(self, units=1):
        self.batches += 1
        if self.batches == 2:
            os.kill(os.getpid(), signal.SIGKILL)

run = Run.open(Path(sys.argv[1]))
options = {"limit": 30, "device": "cpu", "key": Key.from_seed(21), "progress": Kill()}
tp.certify(run, sampling=Sampling(20, 120, 0.01), **options)
"""


def test_a_killed_certification_is_resumed_to_the_same_bytes(root: Path, dataset: Dataset, certified: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(root)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((root / "private/work/certificates/l2").glob("0*.json"))) == 2
    _certify(root, dataset, key=None)
    assert (root / CSV).read_bytes() == (certified / CSV).read_bytes()


def test_a_second_call_draws_nothing(copied: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _content(copied)
    monkeypatch.setattr(VoteCounter, "count", None)
    assert len(_certify(copied, dataset, key=None).certificates) == LIMIT
    assert _content(copied) == before


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"limit": 0}, ConfigError, "nothing to certify"),
        ({"sigma": -1.0}, ConfigError, "sigma|noise"),
        ({"sigma": 1e-9}, ConfigError, "sigma|noise"),
        ({"sampling": Sampling(20, 3, 0.001)}, ConfigError, "never certify"),
        ({"name": "../l2"}, ConfigError, "name cannot be used"),
        ({"sigma": 0.5, "overwrite": False}, RunError, "sigma 0.5"),
    ],
)
def test_refusals_leave_earlier_certificates_even_with_overwrite(
    copied: Path, dataset: Dataset, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    before = _content(copied)
    with pytest.raises(error, match=words):
        _certify(copied, dataset, **{"overwrite": True, **options})
    assert _content(copied) == before


def test_changed_weights_and_other_data_are_refused(copied: Path, dataset: Dataset) -> None:
    fewer = Split(dataset.test.inputs[:-1], dataset.test.labels[:-1])
    other = Dataset(dataset.name, dataset.kind, dataset.train, fewer, dataset.classes, dataset.levels)
    with pytest.raises(RunError, match="not the data of the run"):
        _certify(copied, other, overwrite=True)
    model = copied / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\1")
    before = _content(copied)
    with pytest.raises(RunError, match="not the ones this run made"):
        _certify(copied, dataset, overwrite=True)
    assert _content(copied) == before


def test_certifications_stand_beside_each_other_and_one_is_replaced_alone(copied: Path, dataset: Dataset) -> None:
    before = (copied / CSV).read_bytes()
    names = [
        _certify(copied, dataset, limit=2, **options).name
        for options in (
            {"method": Method(norm="linf")},
            {"method": Method(norm="linf", bound="hgm")},
            {"name": "wide", "sigma": 0.5},
            {"name": "wide", "sigma": 1.0, "overwrite": True},
        )
    ]
    assert names == ["linf", "linf-hgm", "wide", "wide"]
    robustness = Run.open(copied).robustness
    assert {name: dict(one.values)["sigma"] for name, one in robustness.items()} == {
        "l2": 0.25,
        "linf": 0.25,
        "linf-hgm": 0.25,
        "wide": 1.0,
    }
    assert (copied / CSV).read_bytes() == before


def test_lines_that_are_lost_are_noticed(copied: Path, dataset: Dataset) -> None:
    lines = (copied / CSV).read_text().splitlines(keepends=True)
    (copied / CSV).write_text("".join([*lines[:3], lines[4], lines[3], *lines[5:]]))
    with pytest.raises(RunError, match="in order"):
        _certify(copied, dataset)


def test_memory_does_not_grow_with_n(root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = []
    fill = NoisyRows._fill_on_host

    def watched(self: NoisyRows, first: int, out: torch.Tensor) -> None:
        largest.append(out.numel())
        fill(self, first, out)

    monkeypatch.setattr(NoisyRows, "_fill_on_host", watched)
    _certify(root, dataset, sampling=Sampling(20, 12_345), limit=2)
    assert max(largest) == 1000 * int(np.prod(dataset.shape))


class LateMixing(nn.Module):
    """Another network once it has seen many rows."""

    seen = 0

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        LateMixing.seen += len(x)
        scores: Tensor = self.network(x)
        return scores if LateMixing.seen < 4500 else scores.flip(0)


def test_a_network_that_changes_while_votes_are_counted_promises_nothing(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Run.open(root).model()
    monkeypatch.setattr(Run, "model", lambda run, device: LateMixing(model))
    LateMixing.seen = 0
    with pytest.raises(ModelError, match=r"changes while it is used|depends on the other inputs"):
        _certify(root, dataset)
    assert Run.open(root).robustness == {}
    assert not (root / "certificates").exists()


@pytest.mark.parametrize("alpha", [0.001, 1e-9, 0.0012345678])
def test_the_promise_states_alpha_as_it_is_and_that_noise_was_shared(alpha: float) -> None:
    plain, shared = (certified_promise(changed(CERTIFICATES, alpha=alpha, shared_noise=value)) for value in (False, True))
    assert repr(alpha) in plain.promise
    assert plain.status is Status.PROVEN
    assert shared.assumptions[: len(plain.assumptions)] == plain.assumptions
    assert any("fail together" in line for line in shared.assumptions[len(plain.assumptions) :])
