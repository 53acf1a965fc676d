"""Certifying and attacking one model, and counting, with the functions that every user calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.certification.method import Method, Sampling
from twinproof.certification.run import CertifiedRun, certify
from twinproof.data.record import Dataset
from twinproof.evaluation import under_attack
from twinproof.evaluation.attack_record import AttackLine
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Protocol
from twinproof.evaluation.under_attack import AttackedRun
from twinproof.papers.adaptive import adaptive_accuracy
from twinproof.papers.measurement import Numbers
from twinproof.papers.rereading import PUBLISHED, Rereading
from twinproof.papers.under_attack import UnderAttack
from twinproof.runs.run import Run


def attacked_numbers(measurement: UnderAttack, run: Run, dataset: Dataset, *, device: str) -> Numbers:
    """Certificates of the model's own noise, accuracy under the papers' attacks and under one that sees the noise."""
    certified = None
    if measurement.certified:
        certified = certify(
            run,
            dataset,
            sampling=Sampling(measurement.n0, measurement.n, measurement.alpha),
            method=Method(norm=measurement.norm),
            limit=measurement.limit,
            device=device,
        )
    attacked = under_attack.attack(
        Run.open(run.root),
        dataset,
        plan=attack_plan(measurement),
        sampling=Sampling(measurement.n0, measurement.judging, measurement.alpha),
        limit=measurement.limit,
        device=device,
    )
    numbers = counted(measurement, attacked, run, dataset, certified)
    return {**numbers, "adaptive": adaptive_accuracy(run, dataset, measurement, device=device)}


def attack_plan(measurement: UnderAttack) -> AttackPlan:
    """The papers' attacks: crafted without noise, each step of size / steps, and the last point kept."""
    return AttackPlan(
        norm=measurement.norm,
        sizes=measurement.sizes,
        attacks=measurement.attacks,
        protocols=(Protocol.PAPER,),
        paper_steps=measurement.steps,
    )


def counted(
    measurement: UnderAttack, attacked: AttackedRun, run: Run, dataset: Dataset, certified: CertifiedRun | None
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
    reading.check(*_votes(certified.certificates), certified.settings.sampling.n, certified.settings.sampling.alpha)
    reading.check(*_votes(clean), attacked.settings.sampling.n, attacked.settings.sampling.alpha)
    bounds = reading.bounds
    claimed = {"paper_norm": reading.rules[PUBLISHED].operator_norm} if PUBLISHED in bounds else {}
    return {
        **numbers,
        "sigma": certified.settings.noise.sigma,
        "operator_norm": certified.settings.noise.operator_norm,
        **claimed,
        "bound_status": {bound: str(reading.status(bound)) for bound in bounds},
        "certified_there": {bound: _there(reading, bound, entries, attacked, measurement) for bound in bounds},
        "certified": {bound: _line(reading, bound, certified, measurement) for bound in bounds},
        "mean_radius": {bound: _mean_radius(reading, bound, certified) for bound in bounds},
    }


def conventional(lines: Sequence[AttackLine], measurement: UnderAttack) -> float:
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
    measurement: UnderAttack,
) -> dict[str, list[float]]:
    """The papers' certified accuracy: right and robust to the size of the attack, at the attacked input."""
    shares: dict[str, list[float]] = {}
    for attack, each in entries.items():
        shares[attack] = []
        for size, lines in zip(measurement.sizes, each, strict=True):
            right, radii = _held(reading, bound, lines, attacked.settings.sampling.n, attacked.settings.sampling.alpha)
            shares[attack].append(float(np.mean(right & (radii >= size))))
    return shares


def _line(reading: Rereading, bound: str, certified: CertifiedRun, measurement: UnderAttack) -> list[float]:
    """The certified line: right and robust to each size, at the test images themselves; no attack can get below a sound one."""
    right, radii = _held(
        reading, bound, certified.certificates, certified.settings.sampling.n, certified.settings.sampling.alpha
    )
    return [float(np.mean(right & (radii >= size))) for size in measurement.line]


def _mean_radius(reading: Rereading, bound: str, certified: CertifiedRun) -> float:
    right, radii = _held(
        reading, bound, certified.certificates, certified.settings.sampling.n, certified.settings.sampling.alpha
    )
    return float(np.mean(np.where(right, radii, 0.0)))
