"""Certifying a run: resumable to the byte, refused without harm, and recorded only when complete."""

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

from interruption import StopAfter
import twinproof as tp
from twinproof.certification import run as certify_run_module
from twinproof.certification import run as earlier_work
from twinproof.certification.method import Sampling
from twinproof.certification.run import CertifiedRun
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import NoisyRows, VoteCounter
from twinproof.data.record import Dataset, Split
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.files import sha256_file
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.runs.certificates import read_certificates, read_settings, write_settings
from twinproof.runs.layout import read_run_json
from twinproof.runs.run import Run

KEY = Key.from_seed(21)
SAMPLING = Sampling(n0=20, n=120, alpha=0.01)
LIMIT = 30  # three batches of 8 and one of 6


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _certify(root: Path, dataset: Dataset, **options: Any) -> CertifiedRun:
    settings = {"sampling": SAMPLING, "limit": LIMIT, "device": "cpu", "key": KEY, **options}
    return tp.certify(Run.open(root), dataset, **settings)


def _content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir()) if path.is_file()}


@pytest.fixture(scope="module")
def uninterrupted(trained: Path, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run"))
    _certify(root, dataset)
    return (root / "certificates/l2/certificates.csv").read_bytes()


def test_a_certified_run_is_recorded(root: Path, dataset: Dataset) -> None:
    before = read_run_json(root)
    made = _certify(root, dataset)
    record, settings = read_run_json(root), json.loads((root / "certificates/l2/certificates.json").read_text())
    robustness = Run.open(root).robustness
    assert robustness.status is Status.PROVEN
    largest = made.settings.largest_radius
    assert dict(robustness.values) == {"sigma": 0.25, "alpha": 0.01, "n": 120, "largest_radius": largest, "norm": "l2"}
    assert len(robustness.assumptions) >= 5
    assert "0.01" in robustness.promise
    for name in ("certificates.json", "certificates.csv"):
        assert record["files"][name] == {"sha256": sha256_file(root / name)}
    untouched = set(before) - {"files", "guarantees"}
    assert {key: record[key] for key in untouched} == {key: before[key] for key in untouched}
    assert record["guarantees"]["privacy"] == before["guarantees"]["privacy"]
    assert settings["state"] == "complete"
    assert settings["model_sha256"] == sha256_file(root / "model.safetensors")
    assert settings["key"] == KEY.secret.hex()
    assert [one.index for one in made.certificates] == list(range(LIMIT))
    assert [one.label for one in made.certificates] == dataset.test.labels[:LIMIT].tolist()
    assert made.images_per_second > 0


def test_the_lines_are_those_of_the_smoothed_classifier(root: Path, dataset: Dataset) -> None:
    made = _certify(root, dataset).certificates
    smoothed = smooth(Run.open(root).model(), 0.25, levels=dataset.levels)
    for first in range(0, LIMIT, 8):
        rows = slice(first, min(first + 8, LIMIT))
        labels = dataset.test.labels[rows].tolist()
        again = smoothed.certify(dataset.test.inputs[rows], labels, sampling=SAMPLING, key=KEY, first_index=first)
        assert made[rows] == again


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_an_interrupted_certification_goes_on_to_the_same_bytes(
    root: Path, dataset: Dataset, uninterrupted: bytes, batches: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, progress=StopAfter(batches))
    assert read_run_json(root)["guarantees"]["robustness"]["status"] == "none"
    assert len(read_certificates(root)) == min(8 * batches, LIMIT)
    progress = StopAfter(-1)
    made = _certify(root, dataset, key=None, progress=progress)
    assert progress.started == ("certifying", LIMIT, min(8 * batches, 24))
    assert made.settings.key == KEY.secret.hex(), "the key of the earlier work is taken over"
    assert (root / "certificates/l2/certificates.csv").read_bytes() == uninterrupted
    assert Run.open(root).robustness.status is Status.PROVEN


_KILLED = """
import os, signal, sys
from pathlib import Path
from twinproof.certification.smoothed import Sampling
from twinproof.progress import Silent
from twinproof.keys import Key
from twinproof.recipes.run_data import load_run_data
from twinproof.runs.run import Run

class Kill(Silent):
    batches = 0
    def advance(self, units=1):
        self.batches += 1
        if self.batches == 2:
            os.kill(os.getpid(), signal.SIGKILL)

run = Run.open(Path(sys.argv[1]))
options = {"limit": 30, "device": "cpu", "key": Key.from_seed(21), "progress": Kill()}
tp.certify(run, load_run_data(run), sampling=Sampling(20, 120, 0.01), **options)
"""


def test_a_killed_certification_goes_on_to_the_same_bytes(root: Path, dataset: Dataset, uninterrupted: bytes) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(root)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(read_certificates(root)) == 16
    _certify(root, dataset, key=None)
    assert (root / "certificates/l2/certificates.csv").read_bytes() == uninterrupted


def test_a_file_cut_anywhere_is_mended(root: Path, dataset: Dataset, uninterrupted: bytes) -> None:
    with pytest.raises(KeyboardInterrupt):
        _certify(root, dataset, progress=StopAfter(3))
    path = root / "certificates/l2/certificates.csv"
    settings, whole = (root / "certificates/l2/certificates.json").read_bytes(), path.read_bytes()
    for length in (0, 3, 47, 48, 49, 60, len(whole) // 2, len(whole) - 30, len(whole) - 1, len(whole)):
        (root / "certificates/l2/certificates.json").write_bytes(settings)
        path.write_bytes(whole[:length])
        _certify(root, dataset)
        assert path.read_bytes() == uninterrupted, f"cut at byte {length}"


def test_a_second_call_draws_nothing(root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _certify(root, dataset)
    before = _content(root)
    monkeypatch.setattr(VoteCounter, "count", None)
    assert _certify(root, dataset, key=None).certificates == first.certificates
    assert _content(root) == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sigma": 0.5}, "sigma 0.5"),
        ({"sampling": Sampling(20, 121, 0.01)}, "n 121"),
        ({"sampling": Sampling(21, 120, 0.01)}, "n0 21"),
        ({"sampling": Sampling(20, 120, 0.001)}, "alpha 0.001"),
        ({"limit": 31}, "inputs 31"),
        ({"key": Key.from_seed(22)}, "key"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_lost(
    root: Path, dataset: Dataset, options: dict[str, Any], named: str
) -> None:
    _certify(root, dataset)
    before = _content(root)
    with pytest.raises(RunError, match="other settings") as refused:
        _certify(root, dataset, **options)
    assert named in refused.value.wanted
    assert "--overwrite" in refused.value.fix
    assert _content(root) == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit": 0}, ConfigError),
        ({"sigma": -1.0}, ConfigError),
        ({"sigma": 1e-9}, ConfigError),
        ({"sampling": Sampling(20, 3, 0.001)}, ConfigError),
    ],
)
def test_refusals_leave_earlier_certificates_even_with_overwrite(
    root: Path, dataset: Dataset, options: dict[str, Any], error: type[Exception]
) -> None:
    _certify(root, dataset)
    before = _content(root)
    with pytest.raises(error):
        _certify(root, dataset, overwrite=True, **options)
    assert _content(root) == before


def test_changed_weights_are_refused_before_anything_is_touched(root: Path, dataset: Dataset) -> None:
    _certify(root, dataset)
    model = root / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\1")
    before = _content(root)
    with pytest.raises(RunError, match="not the ones this run made"):
        _certify(root, dataset, overwrite=True)
    assert _content(root) == before


def test_other_data_are_refused(root: Path, dataset: Dataset) -> None:
    _certify(root, dataset)
    before = _content(root)
    fewer = Split(dataset.test.inputs[:-1], dataset.test.labels[:-1])
    other = Dataset(dataset.name, dataset.kind, dataset.train, fewer, dataset.classes, dataset.levels)
    with pytest.raises(RunError, match="not the data of the run"):
        _certify(root, other, overwrite=True)
    assert _content(root) == before


def test_overwrite_replaces_everything(root: Path, dataset: Dataset) -> None:
    _certify(root, dataset)
    made = _certify(root, dataset, sigma=0.5, limit=10, overwrite=True)
    assert len(made.certificates) == 10
    settings = read_settings(root)
    assert settings is not None
    assert (settings.sigma, settings.inputs, settings.state) == (0.5, 10, "complete")
    assert dict(Run.open(root).robustness.values)["sigma"] == 0.5


class Interruption(BaseException):
    """A kill, at a place of the test's choice."""


def _interrupt(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int) -> None:
    real, calls = getattr(module, name), iter(range(1, 100))

    def interrupted(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise Interruption
        return real(*args, **options)

    monkeypatch.setattr(module, name, interrupted)


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (earlier_work, "sync_folder", 1),
        (earlier_work, "sync_folder", 2),
        (earlier_work, "update_run_json", 1),
        (earlier_work, "write_settings", 1),
        (certify_run_module, "CertificateWriter", 1),
        (certify_run_module, "write_settings", 1),
        (certify_run_module, "update_run_json", 1),
    ],
)
def test_overwriting_killed_at_any_step_never_mixes_old_and_new(
    root: Path, dataset: Dataset, uninterrupted: bytes, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int
) -> None:
    """The worst that a kill could do: old votes at sigma 1 counted as done under the new sigma, and called proven."""
    _certify(root, dataset, sigma=1.0)
    old = (root / "certificates/l2/certificates.csv").read_bytes()
    assert old != uninterrupted
    with monkeypatch.context() as patched:
        _interrupt(patched, module, name, call)
        with pytest.raises(Interruption):
            _certify(root, dataset, overwrite=True)
    _certify(root, dataset)
    assert (root / "certificates/l2/certificates.csv").read_bytes() == uninterrupted
    record = read_run_json(root)
    assert record["guarantees"]["robustness"]["status"] == "proven"
    assert record["guarantees"]["robustness"]["values"]["sigma"] == 0.25
    assert record["files"]["certificates.csv"] == {"sha256": sha256_file(root / "certificates/l2/certificates.csv")}
    assert record["files"]["certificates.json"] == {"sha256": sha256_file(root / "certificates/l2/certificates.json")}


def test_planted_settings_before_the_old_lines_are_gone_is_caught(
    root: Path, dataset: Dataset, uninterrupted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the test above can fail: the order it forbids does mix."""
    _certify(root, dataset, sigma=1.0)
    monkeypatch.setattr(earlier_work, "_start_afresh", lambda root, wanted: write_settings(root, wanted))
    with monkeypatch.context() as patched:
        _interrupt(patched, certify_run_module, "CertificateWriter", 1)
        with pytest.raises(Interruption):
            _certify(root, dataset, overwrite=True)
    _certify(root, dataset)
    assert (root / "certificates/l2/certificates.csv").read_bytes() != uninterrupted


def test_tampered_lines_are_not_bound_again(root: Path, dataset: Dataset) -> None:
    """A second call must not renew the digest of certificates that somebody changed in between."""
    _certify(root, dataset)
    path, bound = root / "certificates/l2/certificates.csv", read_run_json(root)["files"]["certificates.csv"]
    path.write_text(path.read_text().replace(",0.0", ",0.9"))
    _certify(root, dataset)
    assert read_run_json(root)["files"]["certificates.csv"] == bound != {"sha256": sha256_file(path)}


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
        """The network's scores, and later those of other rows."""
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
    settings = read_settings(root)
    assert settings is not None, "it began"
    assert settings.state == "sampling"
    assert Run.open(root).robustness.status is Status.NONE
