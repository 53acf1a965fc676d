"""Certifying one model at one or more sigmas, and counting, with the functions that every user calls."""

from __future__ import annotations

import torch

from twinproof.attacks.objective import Plain
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import Keep, fgsm
from twinproof.attacks.threat import Threat
from twinproof.certification.method import Sampling
from twinproof.certification.run import CertifiedRun, certify
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.evaluation.certified import summarize
from twinproof.keys import Key
from twinproof.papers.certified_copies import certified_copies
from twinproof.papers.measurement import Numbers
from twinproof.papers.smoothing import Smoothing, radii_of, sigma_name
from twinproof.runs.run import Run


def smoothing_numbers(measurement: Smoothing, run: Run, dataset: Dataset, *, device: str) -> Numbers:
    """Clean accuracy, what CERTIFY says at each sigma, and accuracy under FGSM."""
    smoothed: Numbers = {}
    for sigma, copy in certified_copies(run, measurement.sigmas).items():
        sampling = Sampling(measurement.n0, measurement.n, measurement.alpha)
        made = certify(copy, dataset, sampling=sampling, sigma=sigma, limit=measurement.limit, device=device)
        smoothed[sigma_name(sigma)] = counted(made)
    return {
        "clean": run.record["accuracy"]["value"],
        "smoothed": smoothed,
        "fgsm": fgsm_accuracy(run, dataset, measurement, device=device),
    }


def counted(made: CertifiedRun) -> Numbers:
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
