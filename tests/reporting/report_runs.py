"""Writes small run directories as docs/formats/run.md describes them, for the tests of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twinproof.certification.record import CertificateSettings
from twinproof.data.record import Dataset, InputKind, Scaling, Split
from twinproof.files import sha256_file, write_json
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.runs.certificates import ABSTAIN, Certificate, format_certificates
from twinproof.runs.layout import RunLayout
from twinproof.runs.records import json_file
from work_settings import CERTIFICATES, changed

LARGEST_RADIUS = 1.599289
CLASSES = ("zero", "one", "two", "three")


def privacy_promise(status: Status = Status.PROVEN) -> Guarantee:
    return Guarantee(
        kind=Kind.PRIVACY,
        status=status,
        promise="(epsilon, delta)-differential privacy under adding or removing one record",
        theorem="Composition of Poisson-sampled Gaussian mechanisms, accounted by privacy loss distributions",
        assumptions=("One person has one record.", "The noise key was drawn from the system's entropy and is destroyed."),
        values=(("epsilon", 2.9999), ("delta", 1e-5)),
    )


def robustness_promise(status: Status = Status.PROVEN) -> Guarantee:
    return Guarantee(
        kind=Kind.ROBUSTNESS,
        status=status,
        promise="The smoothed classifier's answer is constant within the certified l2 radius",
        theorem="Cohen, Rosenfeld and Kolter 2019, theorem 1, with noise on a grid",
        assumptions=("The noise at inference is the noise that was certified.",),
        values=(("sigma", 0.5), ("alpha", 0.001)),
    )


def run_record(**changes: Any) -> dict[str, Any]:
    """A complete run.json; keyword arguments replace entries."""
    record: dict[str, Any] = {
        "format": 3,
        "state": "complete",
        "created": "2025-01-01T10:00:00Z",
        "config": {"recipe": "dp-cert-gaussian"},
        "recipe": "dp-cert-gaussian",
        "data": {
            "name": "squares",
            "kind": "image",
            "shape": [1, 8, 8],
            "classes": list(CLASSES),
            "levels": 255,
            "test_records": 360,
            "records": 1437,
            "feature_names": [],
            "scaling": None,
        },
        "guarantees": {"privacy": privacy_promise().as_dict(), "robustness": {"l2": robustness_promise().as_dict()}},
        "privacy": {
            "epsilon": 2.9999,
            "epsilon_rdp": 3.210001,
            "delta": 1e-5,
            "noise_multiplier": 1.234567,
            "sample_rate": 0.0625,
            "steps": 400,
            "clip_norm": 1.0,
            "divisor": 90,
        },
        "accuracy": {"value": 0.925, "low": 0.892, "high": 0.951, "confidence": 0.95, "correct": 333, "total": 360},
        "versions": {"twinproof": "0.1.0", "torch": "2.13.0"},
        "device": "cpu",
        "files": {"model.safetensors": {"sha256": "ab" * 32}},
    }
    return {**record, **changes}


def certificate_settings(**changes: Any) -> CertificateSettings:
    values: dict[str, Any] = {"model_sha256": "ab" * 32, "sigma": 0.5, "grid": 0.25, "dimension": 64, "n0": 100, "n": 10_000}
    made = {"key": "00" * 32, "largest_radius": LARGEST_RADIUS, "inputs": 360, "classes": 4, "seconds": 61.0}
    return changed(CERTIFICATES, **{**values, **made, "created": "2025-01-01T11:00:00Z", "device": "cpu", **changes})


def make_certificates(labels: Sequence[int], seed: int = 1, classes: int = 4, strength: float = 0.9) -> list[Certificate]:
    """Plausible certificates: most right with radii around the middle, some wrong with small ones, some abstentions."""
    generator = np.random.default_rng(seed)
    certificates = []
    for index, label in enumerate(labels):
        kind = generator.random()
        wrong = (label + 1) % classes
        radius = float(generator.beta(2.2, 1.8)) * LARGEST_RADIUS * strength
        if kind < 0.08:
            certificates.append(Certificate(index, label, ABSTAIN, 5010, wrong, 0.0))
        elif kind < 0.18:
            certificates.append(Certificate(index, label, wrong, 7000, wrong, round(0.4 * radius, 6)))
        else:
            certificates.append(Certificate(index, label, label, 9000, label, round(radius, 6)))
    return certificates


def write_run(
    root: Path,
    record: dict[str, Any] | None = None,
    certificates: Sequence[Certificate] | None = None,
    settings: CertificateSettings | None = None,
    metrics: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """Writes what is given; the parts that are None stay absent."""
    root.mkdir(parents=True)
    layout = RunLayout(root)
    if metrics is not None:
        layout.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
    if certificates is not None:
        folder = root / "certificates" / "l2"
        folder.mkdir(parents=True)
        asked = settings or certificate_settings(inputs=len(certificates))
        (folder / "certificates.json").write_bytes(json_file(asked.as_dict()))
        (folder / "certificates.csv").write_bytes(format_certificates(certificates))
    record = run_record() if record is None else record
    for path in (layout.metrics, *root.glob("certificates/l2/*")):
        if path.is_file():
            record["files"] = {**record["files"], path.relative_to(root).as_posix(): {"sha256": sha256_file(path)}}
    write_json(layout.run_json, record)
    return root


def make_metrics(private: bool = True) -> list[dict[str, Any]]:
    steps = range(40, 401, 40)
    return [
        {
            "step": step,
            "epoch": step * 0.0625,
            "epsilon": round(2.9999 * (step / 400) ** 0.5, 6) if private else None,
            "test_accuracy": 0.95 * (1 - 2.0 ** (-step / 60)),
            "test_loss": 1 / step,
            "rate": 20.0,
        }
        for step in steps
    ]


def image_data(labels: Sequence[int], channels: int = 1) -> Dataset:
    """Images with a bright square whose place is the class."""
    inputs = np.zeros((len(labels), channels, 8, 8), np.uint8)
    for row, label in enumerate(labels):
        inputs[row, :, 2 * label : 2 * label + 2, 2 * label : 2 * label + 2] = 255
    split = Split(inputs, np.asarray(labels, np.int64))
    return Dataset("squares", InputKind.IMAGE, split, split, CLASSES, 255, public=True)


def feature_data(labels: Sequence[int]) -> Dataset:
    generator = np.random.default_rng(3)
    split = Split(generator.integers(0, 65536, (len(labels), 12)).astype(np.uint16), np.asarray(labels, np.int64))
    names = tuple(f"<b>feature {index}" for index in range(12))
    scaling = Scaling(low=(0.0,) * 12, high=(10.0,) * 12, source="declared")
    return Dataset("table", InputKind.FEATURES, split, split, CLASSES, 65535, names, scaling, public=True)


LABELS = tuple(index % len(CLASSES) for index in range(60))
