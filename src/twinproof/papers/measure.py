"""Making one cell: train, certify, attack, and count, with the functions that every user calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.certify.method import Method
from twinproof.certify.run import CertifiedRun, certify_run
from twinproof.certify.smoothed import Sampling
from twinproof.data.record import Dataset
from twinproof.evaluate.protocols import CLEAN, AttackPlan, Protocol
from twinproof.evaluate.under_attack import AttackedRun, attack_run
from twinproof.papers.adaptive import adaptive_accuracy
from twinproof.papers.cell import Cell, Measurement
from twinproof.papers.cell_store import CellStore, Measured
from twinproof.papers.rereading import BOUNDS, Rereading
from twinproof.recipes.train import train
from twinproof.runs.attacks import AttackLine
from twinproof.runs.environment import software_versions, utc_now
from twinproof.runs.run import Run
from twinproof.training.device import describe_device, resolve_device

Numbers = dict[str, Any]


def measure(cell: Cell, store: CellStore, dataset: Dataset, *, device: str = "auto") -> Measured:
    """Trains, certifies and attacks the model of ``cell`` in its folder, and keeps the numbers.

    Guarantees
        Killed at any moment and called again, it goes on where it stopped. Nothing is kept before everything is measured.
    """
    began = time.monotonic()
    run = trained(cell, store.run_folder(cell), dataset, device=device)
    numbers: Numbers = {
        "epsilon": run.epsilon,
        "privacy_status": str(run.guarantee.status),
        "accuracy": run.record["accuracy"]["value"],
    }
    certified = None
    if cell.measurement.certified:
        certified = certify_run(
            run,
            dataset,
            sampling=Sampling(cell.measurement.n0, cell.measurement.n, cell.measurement.alpha),
            method=Method(norm=cell.measurement.norm),
            limit=cell.measurement.limit,
            device=device,
        )
    attacked = attack_run(
        Run.open(run.root),
        dataset,
        plan=attack_plan(cell.measurement),
        sampling=Sampling(cell.measurement.n0, cell.measurement.judging, cell.measurement.alpha),
        limit=cell.measurement.limit,
        device=device,
    )
    numbers |= counted(cell.measurement, attacked, run, dataset, certified)
    numbers["adaptive"] = adaptive_accuracy(run, dataset, cell.measurement, device=device)
    made = {
        "device": describe_device(resolve_device(device)),
        "versions": software_versions(),
        "date": utc_now(),
        "seconds": round(time.monotonic() - began, 1),
        "training_seconds": run.record["seconds"],
    }
    measured = Measured(cell, numbers, made)
    store.keep(measured)
    return measured


def trained(cell: Cell, folder: Path, dataset: Dataset, *, device: str) -> Run:
    """The run of ``cell``: from the disk, gone on with, or new."""
    settings = {name: value for name, value in cell.training.items() if name != "data"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    return train({**settings, "performance": {"device": device}}, folder, resume=True, dataset=dataset)


def attack_plan(measurement: Measurement) -> AttackPlan:
    """The papers' attacks: crafted without noise, each step of size / steps, and the last point kept."""
    return AttackPlan(
        norm=measurement.norm,
        sizes=measurement.sizes,
        attacks=measurement.attacks,
        protocols=(Protocol.PAPER,),
        paper_steps=measurement.steps,
    )


def counted(
    measurement: Measurement, attacked: AttackedRun, run: Run, dataset: Dataset, certified: CertifiedRun | None
) -> Numbers:
    """Shares of test images, from the lines: accuracy under each attack, and what each bound certifies."""
    by_entry: dict[str, list[AttackLine]] = {}
    for line in attacked.lines:
        by_entry.setdefault(line.entry, []).append(line)
    clean = by_entry[CLEAN.name]
    entries = {
        attack: [by_entry[f"{Protocol.PAPER}/network/{attack}/{size:.12g}"] for size in measurement.sizes]
        for attack in measurement.attacks
    }
    numbers: Numbers = {
        "clean": conventional(clean, measurement),
        "conventional": {attack: [conventional(lines, measurement) for lines in each] for attack, each in entries.items()},
        "crossing": bool(attacked.results["crossing"]),
    }
    if certified is None:
        return numbers
    reading = Rereading.of(run, dataset, certified.settings)
    reading.check(*_votes(certified.certificates), certified.settings.n, certified.settings.alpha)
    reading.check(*_votes(clean), attacked.settings.n, attacked.settings.alpha)
    return {
        **numbers,
        "sigma": certified.settings.sigma,
        "operator_norm": certified.settings.operator_norm,
        "paper_norm": reading.paper_norm,
        "certified_there": {bound: _there(reading, bound, entries, attacked, measurement) for bound in BOUNDS},
        "certified": {bound: _line(reading, bound, certified, measurement) for bound in BOUNDS},
        "mean_radius": {bound: _mean_radius(reading, bound, certified) for bound in BOUNDS},
    }


def conventional(lines: Sequence[AttackLine], measurement: Measurement) -> float:
    """The papers' accuracy: whether the label that the model gives is right, robust or not.

    A network with noise of its own gives the class that most of n0 draws vote for, and never abstains; one without answers by
    itself, at the input as it was crafted.
    """
    given = [line.top if measurement.certified else line.network_unrounded for line in lines]
    return float(np.mean([answer == line.label for answer, line in zip(given, lines, strict=True)]))


def _votes(lines: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Votes and recorded radii."""
    return np.array([line.votes for line in lines]), np.array([line.radius for line in lines])


def _held(
    reading: Rereading, bound: str, lines: Sequence[Any], draws: int, alpha: float
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """For each line, whether the answer is there and right, and the radius that ``bound`` gives it."""
    read = reading.read(bound, _votes(lines)[0], draws, alpha)
    return np.array([line.top == line.label for line in lines]) & read.certified, read.radii


def _there(
    reading: Rereading,
    bound: str,
    entries: dict[str, list[list[AttackLine]]],
    attacked: AttackedRun,
    measurement: Measurement,
) -> dict[str, list[float]]:
    """The papers' certified accuracy: right and robust to the size of the attack, at the attacked input."""
    shares: dict[str, list[float]] = {}
    for attack, each in entries.items():
        shares[attack] = []
        for size, lines in zip(measurement.sizes, each, strict=True):
            right, radii = _held(reading, bound, lines, attacked.settings.n, attacked.settings.alpha)
            shares[attack].append(float(np.mean(right & (radii >= size))))
    return shares


def _line(reading: Rereading, bound: str, certified: CertifiedRun, measurement: Measurement) -> list[float]:
    """The certified line: right and robust to each size, at the test images themselves; no attack can get below a sound one."""
    right, radii = _held(reading, bound, certified.certificates, certified.settings.n, certified.settings.alpha)
    return [float(np.mean(right & (radii >= size))) for size in measurement.line]


def _mean_radius(reading: Rereading, bound: str, certified: CertifiedRun) -> float:
    right, radii = _held(reading, bound, certified.certificates, certified.settings.n, certified.settings.alpha)
    return float(np.mean(np.where(right, radii, 0.0)))
