"""Certifying the test set of a run: written as it is made, resumable, bound to the weights."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from twinproof.certify.base_classifier import BaseClassifier
from twinproof.certify.earlier_work import CERTIFICATE_FILES, COMPLETE, SAMPLING, earlier_form, is_recorded, take_up
from twinproof.certify.method import Method
from twinproof.certify.of_run import smoothed_for_run
from twinproof.certify.promise import certified_promise
from twinproof.certify.radius import largest_radius
from twinproof.certify.sampling import Sampling
from twinproof.certify.smoothed import SmoothedClassifier
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.progress import Progress, Silent
from twinproof.randomness import Key
from twinproof.runs.certificates import (
    Certificate,
    CertificateSettings,
    CertificateWriter,
    read_certificates,
    write_settings,
)
from twinproof.runs.environment import software_versions, utc_now
from twinproof.runs.layout import read_run_json
from twinproof.runs.lock import exclusive
from twinproof.runs.record import update_run_json
from twinproof.runs.run import Run
from twinproof.training.device import describe_device, resolve_device

# Inputs certified and made durable together: a kill loses at most these. With a target an input gets far fewer draws, and
# at the later looks only a few of the inputs are left to fill a forward pass. Shared noise is made once for all of them.
_INPUTS_PER_BATCH = {"cpu": 8, "cuda": 400}
_INPUTS_PER_BATCH_WITH_TARGET = {"cpu": 128, "cuda": 4000}
_INPUTS_PER_BATCH_OF_SHARED_NOISE = {"cpu": 32, "cuda": 400}


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
    method: Method | None = None,
    sigma: float | None = None,
    limit: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    key: Key | None = None,
    progress: Progress | None = None,
) -> CertifiedRun:
    """Certifies the first ``limit`` test inputs of ``run`` (all by default) and records the guarantee in ``run.json``.

    ``sigma`` replaces the deviation of the run's noise, ``method`` plain CERTIFY in the run's norm (``smoothed_for_run``).
    An interrupted certification with the same settings goes on where it stopped; one with other settings is replaced only
    with ``overwrite``.

    Guarantees
        - Whatever is refused is refused before anything in the run is touched.
        - Interrupted at any moment and gone on with, on the same machine, it ends with the same certificates to the byte.
        - ``run.json`` promises robustness only while it binds the digests of a complete certification.
    """
    sampling, progress = sampling or Sampling(), progress or Silent()
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to certify", where="limit", got=limit, wanted="at least 1 input")
    run.refuse_other_data(dataset)
    target = resolve_device(device)
    inputs = min(limit or len(dataset.test), len(dataset.test))
    smoothed = smoothed_for_run(run, dataset, target, sigma=sigma, method=method)
    sampling.refuse_other_methods(smoothed.method)
    form = None if overwrite else earlier_form(run.root, target, shared_noise=sampling.shared_noise)
    base = smoothed.base_for(dataset.test.inputs[:1], sampling, form=form)
    wanted = _settings(run, dataset, smoothed, base, sampling, inputs, target, key or Key.from_system())
    progress.say(f"largest radius that n={sampling.n} at alpha={sampling.alpha:g} allows: {wanted.largest_radius:.6f}")
    began = time.monotonic()
    with exclusive(run.root):
        settings, done = take_up(run.root, wanted, own_key=key is not None, overwrite=overwrite)
        if settings.state != COMPLETE:
            _sample(run.root, dataset, replace(smoothed, base=base), sampling, settings, done, progress)
            seconds = round(settings.seconds + time.monotonic() - began, 3)
            settings = replace(settings, state=COMPLETE, seconds=seconds)
            write_settings(run.root, settings)
        if not is_recorded(run.root):
            _record(run.root, settings)
    elapsed = max(time.monotonic() - began, 1e-9)
    return CertifiedRun(settings, read_certificates(run.root), (inputs - done) / elapsed)


def _settings(
    run: Run,
    dataset: Dataset,
    smoothed: SmoothedClassifier,
    base: BaseClassifier,
    sampling: Sampling,
    inputs: int,
    device: torch.device,
    key: Key,
) -> CertificateSettings:
    noise, method, shape = smoothed.noise, smoothed.method, tuple(dataset.shape)
    rule = smoothed.radius_rule(shape, base.classes)
    return CertificateSettings(
        model_sha256=run.model_sha256,
        norm=str(method.norm),
        sigma=noise.sigma,
        grid=noise.grid,
        levels=smoothed.levels,
        dimension=smoothed.site.dimension(shape),
        tau=rule.tau,
        n0=sampling.n0,
        n=sampling.n,
        alpha=sampling.alpha,
        key=key.secret.hex(),
        largest_radius=largest_radius(sampling, rule),
        inputs=inputs,
        state=SAMPLING,
        device=describe_device(device),
        versions=software_versions(),
        created=utc_now(),
        seconds=0.0,
        target_radius=sampling.target_radius,
        looks=sampling.schedule.looks,
        arithmetic=base.arithmetic,
        form=base.form,
        shared_noise=sampling.shared_noise,
        law=str(noise.law),
        place=str(smoothed.site.place),
        bound=method.bound,
        statistic=str(method.statistic),
        confidence=method.confidence,
        runner_up=str(method.runner_up),
        classes=base.classes,
        resolution=rule.resolution,
        operator_norm=rule.operator_norm,
        operator_norm_method=smoothed.operator_norm(shape).method,
        slack=rule.slack,
    )


def _inputs_per_batch(settings: CertificateSettings) -> int:
    together = _INPUTS_PER_BATCH_OF_SHARED_NOISE if settings.shared_noise else _INPUTS_PER_BATCH
    if settings.target_radius is not None:
        together = _INPUTS_PER_BATCH_WITH_TARGET
    return together["cuda" if settings.device.startswith("cuda") else "cpu"]


def _sample(
    root: Path,
    dataset: Dataset,
    smoothed: SmoothedClassifier,
    sampling: Sampling,
    settings: CertificateSettings,
    done: int,
    progress: Progress,
) -> None:
    step = _inputs_per_batch(settings)
    # A batch that was cut is made again whole: a network's last bits, and so a tied vote, may depend on the batch.
    done -= done % step
    key = Key(bytes.fromhex(settings.key))
    progress.start("certifying", settings.inputs, done)
    writer = CertificateWriter(root, keep=done, more=settings.needs_more)
    try:
        for first in range(done, settings.inputs, step):
            rows = slice(first, min(first + step, settings.inputs))
            labels = dataset.test.labels[rows].tolist()
            writer.append(smoothed.certify(dataset.test.inputs[rows], labels, sampling=sampling, key=key, first_index=first))
            progress.advance(len(labels))
    finally:
        writer.close()


def _record(root: Path, settings: CertificateSettings) -> None:
    guarantees = {**read_run_json(root)["guarantees"], "robustness": certified_promise(settings).as_dict()}
    update_run_json(root, files=CERTIFICATE_FILES, guarantees=guarantees)
