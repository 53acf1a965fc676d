"""One model, certified at several sigmas: a run holds one set of certificates, so that the model is copied for each more.

A copy has weights and records, and each one is certified: all of them are complete runs, which ``twinproof verify`` and
``report`` take.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from twinproof.certification.record import find_certification
from twinproof.files import sync_folder
from twinproof.papers.cell_store import is_trained
from twinproof.papers.smoothing import Smoothing, sigma_name
from twinproof.runs.layout import COMPLETE, RunLayout, read_run_json, write_run_json
from twinproof.runs.run import Run

# What is made of a finished run, and speaks of its certificates.
_LATER = ("certificates", "attacks", "audits", "work", "report.html", "report.json")


def certified_copies(run: Run, sigmas: tuple[float, ...]) -> dict[float, Run]:
    """A run for each sigma, certified or not: the first is ``run`` itself, the others are copies beside it.

    Guarantees
        Every copy has the weights of ``run`` and no certificates of another sigma: one that has is made again, in one step and
        without what was made of ``run`` after its training.
    """
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


def has_certificates(measurement: Smoothing, root: Path) -> bool:
    """Whether the run at ``root`` and its copies are one model with all the certificates that ``measurement`` makes."""
    if not is_trained(root):
        return False
    run, (first, *others) = Run.open(root), measurement.sigmas
    places = {first: root, **{sigma: copy_folder(root, sigma) for sigma in others}}
    return all(_is_certified(folder, run, sigma, measurement) for sigma, folder in places.items())


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
