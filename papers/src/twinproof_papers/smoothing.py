"""Measuring a model as DP-CERT does: l2 certificates by CERTIFY, clean accuracy, and accuracy under one linf step.

A model is copied for each further sigma. Every copy is a complete run, which
``twinproof verify`` and ``report`` take.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from twinproof.attacks.objective import Plain
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import Keep, fgsm
from twinproof.attacks.threat import Threat
from twinproof.certification.method import Sampling, find_certification
from twinproof.certification.run import CertifiedRun, certify
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.evaluation.certified import summarize
from twinproof.files import sync_folder
from twinproof.keys import Key
from twinproof.runs.layout import COMPLETE, RunLayout, read_run_json, write_run_json
from twinproof.runs.run import Run
from twinproof_papers.cell import Numbers, is_trained

KIND = "smoothing"
FGSM_SIZES = (0.0005, 0.01, 0.1, 0.5, 1.0)
"""linf, inputs in [0, 1]: those of Figure 16."""
_STEPS_PER_UNIT = 20
_LONGEST = 4  # in sigmas: beyond what 100,000 draws can certify at alpha 0.001


def radii_of(sigma: float) -> tuple[float, ...]:
    """Where certified accuracy is read: every 0.05 from 0 to four sigmas, so that 0.25 is always among them."""
    return tuple(step / _STEPS_PER_UNIT for step in range(round(_LONGEST * sigma * _STEPS_PER_UNIT) + 1))


@dataclass(frozen=True)
class Smoothing:
    """Certificates of the first ``limit`` test inputs (None: all) under Gaussian noise of each of ``sigmas``, in input units.

    A model that never saw noise is trained once and certified at all of them.
    """

    sigmas: tuple[float, ...]
    limit: int | None = None
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    fgsm_sizes: tuple[float, ...] = FGSM_SIZES

    def __post_init__(self) -> None:
        names = [sigma_name(sigma) for sigma in self.sigmas]
        if not names or len(set(names)) < len(names):
            raise ConfigError("sigmas cannot be used", where="sigmas", got=self.sigmas, wanted="at least one, each once")

    @property
    def after(self) -> None:
        """It has a run of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``kind`` tells them from other measurements."""
        return {"kind": KIND, **asdict(self), "sigmas": list(self.sigmas), "fgsm_sizes": list(self.fgsm_sizes)}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        smoothed: Numbers = {}
        for sigma, copy in certified_copies(run, self.sigmas).items():
            sampling = Sampling(self.n0, self.n, self.alpha)
            made = certify(copy, dataset, sampling=sampling, sigma=sigma, limit=self.limit, device=device)
            smoothed[sigma_name(sigma)] = certified_numbers(made)
        return {
            "clean": run.record["accuracy"]["value"],
            "smoothed": smoothed,
            "fgsm": fgsm_accuracy(run, dataset, self, device=device),
        }

    def is_whole(self, folder: Path) -> bool:
        if not is_trained(folder):
            return False
        run, (first, *others) = Run.open(folder), self.sigmas
        places = {first: folder, **{sigma: copy_folder(folder, sigma) for sigma in others}}
        return all(_is_certified(place, run, sigma, self) for sigma, place in places.items())

    def words(self) -> str:
        images = "all test images" if self.limit is None else f"{self.limit} test images"
        return f"{images}, n0 = {self.n0}, n = {self.n}, alpha {self.alpha:g} for each certificate (l2)"


def sigma_name(sigma: float) -> str:
    return f"{sigma:.12g}"


def certified_numbers(made: CertifiedRun) -> Numbers:
    """ACR, certified accuracy at each of ``radii_of``, smoothed accuracy, abstentions."""
    radii = radii_of(made.settings.noise.sigma)
    summary = summarize(made.certificates, made.settings, radii=radii)
    return {
        "acr": summary.acr.value,
        "certified": [interval.value for _, interval in summary.certified],
        "smoothed_accuracy": summary.smoothed.value,
        "abstained": summary.abstained.value,
        "largest_radius": made.settings.largest_radius,
        "seconds": made.settings.made.seconds,
    }


def fgsm_accuracy(run: Run, dataset: Dataset, measurement: Smoothing, *, device: str) -> list[float]:
    """The share of right answers of the network without noise under one linf step of each size, of all inputs that count."""
    target, key = resolve_device(device), Key.from_system()
    rows = slice(0, measurement.limit)
    inputs = torch.from_numpy(dataset.test.inputs[rows].astype("float32")).to(target) / dataset.levels
    labels = torch.from_numpy(dataset.test.labels[rows]).to(target)
    objective = Plain(run.model(target))
    shares = []
    for size in measurement.fgsm_sizes:
        found = run_attack(fgsm(keep=Keep.LAST), objective, inputs, labels, Threat("linf", size), key=key)
        given = predicted_labels(objective, found.inputs, key=key)
        shares.append(float((given == labels).double().mean()))
    return shares


# What is made of a finished run, and speaks of its certificates.
_LATER = ("certificates", "attacks", "audits", "work", "report.html", "report.json")


def certified_copies(run: Run, sigmas: tuple[float, ...]) -> dict[float, Run]:
    """A run for each sigma, certified or not: the first is ``run`` itself, the others are copies beside it."""
    copies = {sigmas[0]: run}
    for sigma in sigmas[1:]:
        folder = copy_folder(run.root, sigma)
        if not _is_copy(folder, run, sigma):
            _copy(run, folder)
        copies[sigma] = Run.open(folder)
    return copies


def copy_folder(root: Path, sigma: float) -> Path:
    """Where the copy of the run at ``root`` lies that is certified at ``sigma``."""
    return root.with_name(f"{root.name}-sigma-{sigma_name(sigma)}")


def _is_certified(folder: Path, run: Run, sigma: float, measurement: Smoothing) -> bool:
    if not _has_weights_of(run, folder):
        return False
    certification = find_certification(folder)
    if certification is None or certification.settings.state != COMPLETE:
        return False
    found, asked = certification.settings, certification.settings.sampling
    everything = int(run.record["data"]["test_records"])
    inputs = min(measurement.limit or everything, everything)
    wanted = (sigma, measurement.n0, measurement.n, measurement.alpha, run.model_sha256, inputs)
    same = (found.noise.sigma, asked.n0, asked.n, asked.alpha, found.network.model_sha256, found.inputs) == wanted
    return same and len(certification.certificates) == found.inputs


def _is_copy(folder: Path, run: Run, sigma: float) -> bool:
    if not _has_weights_of(run, folder):
        return False
    found = find_certification(folder)
    return found is None or (found.settings.noise.sigma, found.settings.network.model_sha256) == (sigma, run.model_sha256)


def _has_weights_of(run: Run, folder: Path) -> bool:
    if not (is_trained(folder) and RunLayout(folder).model.is_file()):
        return False
    return Run.open(folder).model_sha256 == run.model_sha256


def _copy(run: Run, folder: Path) -> None:
    half = folder.with_name(folder.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(run.root, half, ignore=shutil.ignore_patterns(*_LATER))
    record = read_run_json(half)
    record["files"] = {name: entry for name, entry in record["files"].items() if not name.startswith(_LATER)}
    write_run_json(half, {**record, "guarantees": {**record["guarantees"], "robustness": {}}})
    shutil.rmtree(folder, ignore_errors=True)
    half.replace(folder)
    sync_folder(folder.parent)
