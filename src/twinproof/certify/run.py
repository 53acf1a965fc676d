"""Certifying the test set of a run: written as it is made, resumable, bound to the weights."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from twinproof.certify.grid_gaussian import GridGaussian
from twinproof.certify.smoothed import NORM, Sampling, SmoothedClassifier, largest_radius
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.progress import Progress, Silent
from twinproof.randomness import Key
from twinproof.runs.certificates import (
    Certificate,
    CertificateSettings,
    CertificateWriter,
    read_certificates,
    read_settings,
    write_settings,
)
from twinproof.runs.environment import software_versions, utc_now
from twinproof.runs.record import update_run_json
from twinproof.runs.run import Run
from twinproof.training.device import describe_device, resolve_device

SAMPLING, COMPLETE = "sampling", "complete"
# Inputs certified and made durable together: a kill loses at most these.
_INPUTS_PER_BATCH = {"cpu": 8, "cuda": 100}

_THEOREM = (
    "Randomized smoothing (Cohen, Rosenfeld and Kolter 2019, theorem 1) with a one-sided Clopper-Pearson bound; "
    "noise on a power-of-two grid, so that float32 addition is exact"
)
_ASSUMPTIONS = (
    "The l2 distance is measured in input units ([0, 1] per coordinate), between inputs that can be stored.",
    "The answer is that of the smoothed classifier with exactly these weights and this noise, not of the bare network.",
    "Each certificate alone fails with probability at most alpha; they do not hold jointly with that probability.",
    "The network runs in the same precision and on the same kind of device as it was certified on.",
    "The pseudo-random generator behaves like ideal random bits; the certification key was not chosen by trying several.",
)


@dataclass(frozen=True)
class CertifiedRun:
    """What ``certify_run`` made."""

    settings: CertificateSettings
    certificates: list[Certificate]
    images_per_second: float


def certify_run(
    run: Run,
    dataset: Dataset,
    *,
    sampling: Sampling | None = None,
    sigma: float | None = None,
    limit: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    key: Key | None = None,
    progress: Progress | None = None,
) -> CertifiedRun:
    """Certifies the first ``limit`` test inputs of ``run`` (all by default) and records the guarantee in ``run.json``.

    An interrupted certification with the same settings goes on where it stopped; one with other settings is replaced only
    with ``overwrite``.
    """
    sampling, progress = sampling or Sampling(), progress or Silent()
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to certify", where="limit", got=limit, wanted="at least 1 input")
    target = resolve_device(device)
    noise = GridGaussian(sigma if sigma is not None else float(run.record["config"]["sigma"]), dataset.levels)
    inputs = min(limit or len(dataset.test), len(dataset.test))
    wanted = _settings(run, dataset, noise, sampling, inputs, target, key or Key.from_system())
    progress.say(f"largest radius that n={sampling.n} at alpha={sampling.alpha:g} allows: {wanted.largest_radius:.6f}")
    settings, done = _earlier_work(run.root, wanted, overwrite=overwrite)
    began = time.monotonic()
    if settings.state != COMPLETE:
        _sample(run, dataset, noise, sampling, settings, done, target, progress)
        seconds = round(settings.seconds + time.monotonic() - began, 3)
        settings = replace(settings, state=COMPLETE, seconds=seconds)
        write_settings(run.root, settings)
        _record(run, settings)
    elapsed = max(time.monotonic() - began, 1e-9)
    return CertifiedRun(settings, read_certificates(run.root), (inputs - done) / elapsed)


def _settings(
    run: Run, dataset: Dataset, noise: GridGaussian, sampling: Sampling, inputs: int, device: torch.device, key: Key
) -> CertificateSettings:
    dimension = math.prod(dataset.shape)
    return CertificateSettings(
        model_sha256=run.model_sha256,
        norm=NORM,
        sigma=noise.sigma,
        grid=noise.grid,
        levels=noise.levels,
        dimension=dimension,
        tau=noise.tau(dimension),
        n0=sampling.n0,
        n=sampling.n,
        alpha=sampling.alpha,
        key=key.secret.hex(),
        largest_radius=largest_radius(sampling, noise, dimension),
        inputs=inputs,
        state=SAMPLING,
        device=describe_device(device),
        versions=software_versions(),
        created=utc_now(),
        seconds=0.0,
    )


def _earlier_work(root: Path, wanted: CertificateSettings, *, overwrite: bool) -> tuple[CertificateSettings, int]:
    """The settings to go on with, and how many inputs are done already."""
    earlier = read_settings(root)
    if earlier is not None and not overwrite:
        comparable = replace(
            wanted, key=earlier.key, state=earlier.state, device=earlier.device, versions=earlier.versions,
            created=earlier.created, seconds=earlier.seconds,
        )  # fmt: skip
        if comparable == earlier:
            return earlier, len(read_certificates(root))
        raise RunError(
            "this run has certificates with other settings",
            where=str(root / "certificates.json"),
            got=f"sigma {earlier.sigma}, n0 {earlier.n0}, n {earlier.n}, alpha {earlier.alpha}, {earlier.inputs} inputs",
            wanted=f"sigma {wanted.sigma}, n0 {wanted.n0}, n {wanted.n}, alpha {wanted.alpha}, {wanted.inputs} inputs",
            fix="--overwrite replaces them; or copy the run first",
        )
    write_settings(root, wanted)
    return wanted, 0


def _sample(
    run: Run,
    dataset: Dataset,
    noise: GridGaussian,
    sampling: Sampling,
    settings: CertificateSettings,
    done: int,
    device: torch.device,
    progress: Progress,
) -> None:
    model = run.model(device)
    if len(dataset.shape) == 3:
        # The largest single gain on a CPU; the same function of the same weights.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    smoothed = SmoothedClassifier(model, noise)
    key = Key(bytes.fromhex(settings.key))
    progress.start("certifying", settings.inputs, done)
    writer = CertificateWriter(run.root, keep=done)
    try:
        step = _INPUTS_PER_BATCH[device.type]
        for first in range(done, settings.inputs, step):
            rows = slice(first, min(first + step, settings.inputs))
            labels = dataset.test.labels[rows].tolist()
            writer.append(smoothed.certify(dataset.test.inputs[rows], labels, sampling=sampling, key=key, first_index=first))
            progress.advance(len(labels))
    finally:
        writer.close()


def _record(run: Run, settings: CertificateSettings) -> None:
    guarantee = Guarantee(
        Kind.ROBUSTNESS,
        Status.PROVEN,
        f"For each certified input, with probability at least {1 - settings.alpha:g}: no change smaller than its radius "
        f"(l2, inputs in [0, 1]) changes the smoothed classifier's answer.",
        theorem=_THEOREM,
        assumptions=_ASSUMPTIONS,
        values=(
            ("sigma", settings.sigma),
            ("alpha", settings.alpha),
            ("n", settings.n),
            ("largest_radius", settings.largest_radius),
            ("norm", settings.norm),
        ),
    )
    guarantees = {**run.record["guarantees"], "robustness": guarantee.as_dict()}
    update_run_json(run.root, files=("certificates.json", "certificates.csv"), guarantees=guarantees)
