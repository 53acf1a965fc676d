"""Certifying the test set of a run: written as it is made, resumable, bound to the weights."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from twinproof.certification.base_classifier import BaseClassifier
from twinproof.certification.catalogue import bound_plugin, find_bound
from twinproof.certification.method import PLAIN, Method, Sampling
from twinproof.certification.promise import certified_promise, unfinished_promise
from twinproof.certification.radius import largest_radius
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.compute.ranks import ALONE, Ranks, in_rounds
from twinproof.data.record import Dataset, fingerprint
from twinproof.errors import ConfigError, ModelError, RunError, system_faults
from twinproof.files import canonical_json, sync_folder
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place
from twinproof.progress import Progress, Silent
from twinproof.runs.certificates import (
    Certificate,
    CertificateSettings,
    CertificateWriter,
    read_certificates,
    read_settings,
    write_settings,
)
from twinproof.runs.layout import (
    GUARANTEES,
    RunLayout,
    exclusive,
    plugins_entry,
    read_run_json,
    software_versions,
    update_run_json,
    utc_now,
)
from twinproof.runs.run import Run


def smoothed_for_run(
    run: Run, dataset: Dataset, device: torch.device, *, sigma: float | None = None, method: Method | None = None
) -> SmoothedClassifier:
    """What is certified, attacked and audited of ``run``: its trained network over inputs like those of ``dataset``.

    ``sigma`` replaces the noise's deviation: that of the network's own noise layer where it has one, else the run's, at the
    input. Without a ``method`` it is plain CERTIFY in the run's norm (``norm_of_run``).
    """
    network = _network(run, dataset, device)
    if sigma is None and not any(isinstance(module, NoiseLayer) for module in network.modules()):
        sigma = float(run.record["config"]["sigma"])
    chosen = method or Method(norm=norm_of_run(run))
    smoothed = smooth(network, sigma, levels=dataset.levels, method=chosen, input_shape=tuple(dataset.shape))
    if smoothed.site.place == Place.INPUT and smoothed.site.slack > 0:
        raise ModelError(
            "unequal noise at the input cannot be recorded in a run",
            where="noise",
            got="scales that differ, or are drawn at random",
            wanted="equal noise at the input, or noise behind the first layer",
            fix="certify the network in Python with twinproof.smooth",
        )
    return smoothed


def norm_of_run(run: Run) -> str:
    """The norm that the run's noise layer was made for; l2 without one."""
    layer = run.record["config"].get("noise_layer") or {}
    return str(layer.get("norm", PLAIN.norm))


def _network(run: Run, dataset: Dataset, device: torch.device) -> nn.Module:
    model = run.model(device)
    if len(dataset.shape) == 3 and device.type == "cpu":
        # The largest single gain on a CPU where layers stay as they are; the same function of the same weights.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


SAMPLING, COMPLETE = "sampling", "complete"
CERTIFICATE_FILES = ("certificates.json", "certificates.csv")


def take_up(root: Path, wanted: CertificateSettings, *, own_key: bool, overwrite: bool) -> tuple[CertificateSettings, int]:
    """The settings to go on with, and how many inputs are done already.

    ``own_key`` says that the caller chose the key of ``wanted``; otherwise the key of the earlier work is taken over.

    Guarantees
        Certificates made under other settings are never counted as done: work is gone on with only where every setting that
        the votes depend on is the same, and the old files are gone before the new settings are on the disk.
    """
    earlier = None if overwrite else read_settings(root)
    if earlier is None:
        _start_afresh(root, wanted)
        return wanted, 0
    different = _differences(earlier, wanted, own_key=own_key)
    if different:
        old, new = asdict(earlier), asdict(wanted)
        raise RunError(
            "this run has certificates with other settings",
            where=str(RunLayout(root).certificates_json),
            got=", ".join(f"{name} {old[name]}" for name in different),
            wanted=", ".join(f"{name} {new[name]}" for name in different),
            fix="--overwrite replaces them; or copy the run first",
        )
    return earlier, _lines_done(root, earlier)


def earlier_form(root: Path, device: torch.device, *, shared_noise: bool) -> str | None:
    """The form of the network in which earlier work of this kind counted its votes on such a device; None without any."""
    earlier = read_settings(root)
    if earlier is None or _device_kind(earlier) != device.type or earlier.shared_noise != shared_noise:
        return None
    return earlier.form


def is_recorded(root: Path) -> bool:
    """Whether ``run.json`` binds the certificates already."""
    return all(name in read_run_json(root).get("files", {}) for name in CERTIFICATE_FILES)


def _differences(earlier: CertificateSettings, wanted: CertificateSettings, *, own_key: bool) -> list[str]:
    """Names of the settings that differ and matter: where votes are still to be drawn, also what they are drawn with."""
    free = {"state", "created", "seconds"} | (set() if own_key else {"key"})
    same_device = _device_kind(earlier) == _device_kind(wanted)
    if earlier.state == COMPLETE:
        free |= {"device", "versions", "arithmetic", "form"}
    elif same_device:
        free |= {"device"}
    old, new = asdict(earlier), asdict(wanted)
    different = [name for name in old if name not in free and old[name] != new[name]]
    # The looks follow from the other settings: named only where nothing else explains them.
    return [name for name in different if name != "looks"] or different


def _device_kind(settings: CertificateSettings) -> str:
    return settings.device.partition(":")[0]


def _lines_done(root: Path, settings: CertificateSettings) -> int:
    indices = [certificate.index for certificate in read_certificates(root)]
    short = settings.state == COMPLETE and len(indices) != settings.inputs
    if short or len(indices) > settings.inputs or indices != list(range(len(indices))):
        raise RunError(
            "the certificates are not the ones that certificates.json describes",
            where=str(RunLayout(root).certificates_csv),
            got=f"{len(indices)} lines, state {settings.state!r}",
            wanted=f"the inputs 0 to {settings.inputs - 1} in order",
            fix="restore the file, or certify again with --overwrite",
        )
    return len(indices)


def _start_afresh(root: Path, wanted: CertificateSettings) -> None:
    guarantees = {**read_run_json(root, GUARANTEES)["guarantees"], "robustness": unfinished_promise(wanted).as_dict()}
    # Settings go first and come back last: a kill in between leaves no settings, never new ones beside old certificates.
    layout = RunLayout(root)
    layout.certificates_json.unlink(missing_ok=True)
    sync_folder(root)
    layout.certificates_csv.unlink(missing_ok=True)
    sync_folder(root)
    update_run_json(root, files=CERTIFICATE_FILES, guarantees=guarantees)
    write_settings(root, wanted)


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


@system_faults("run the same command again: it goes on where it stopped")
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
    ranks: Ranks = ALONE,
) -> CertifiedRun:
    """Certifies the first ``limit`` test inputs of ``run`` (all by default) and records the guarantee in ``run.json``.

    ``sigma`` replaces the deviation of the run's noise, ``method`` plain CERTIFY in the run's norm (``smoothed_for_run``).
    An interrupted certification with the same settings goes on where it stopped; one with other settings is replaced only
    with ``overwrite``. Several ``ranks`` share out the inputs; all call this alike, and rank 0 writes.

    Guarantees
        - Whatever is refused is refused before anything in the run is touched, but for a network of a user's own that
          misbehaves only while votes are counted: that certification stays unfinished and promises nothing.
        - Interrupted at any moment and gone on with, on the same machine, it ends with the same certificates to the byte.
        - ``run.json`` promises robustness only while it binds the digests of a complete certification.
        - The certificates are the same to the byte for any number of ranks: noise belongs to the input, and the batches of
          inputs are those of one rank.
    """
    sampling, progress = sampling or Sampling(), progress or Silent()
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to certify", where="limit", got=limit, wanted="at least 1 input")
    run.refuse_other_data(dataset)
    target = resolve_device(device)
    inputs = min(limit or len(dataset.test), len(dataset.test))
    smoothed = smoothed_for_run(run, dataset, target, sigma=sigma, method=method)
    sampling.refuse_other_methods(smoothed.method)
    ranks.check_device(target)
    _agree_first(ranks, run, dataset, smoothed, sampling, inputs)
    if not ranks.is_first:
        return _follow(run, dataset, smoothed, sampling, inputs, target, ranks)
    form = None if overwrite else earlier_form(run.root, target, shared_noise=sampling.shared_noise)
    base = smoothed.base_for(dataset.test.inputs[:1], sampling, form=form)
    wanted = _settings(run, dataset, smoothed, base, sampling, inputs, target, key or Key.from_system())
    progress.say(f"largest radius that n={sampling.n} at alpha={sampling.alpha:g} allows: {wanted.largest_radius:.6f}")
    began = time.monotonic()
    with exclusive(run.root):
        settings, done = take_up(run.root, wanted, own_key=key is not None, overwrite=overwrite)
        ranks.from_first(str(done).encode())
        if settings.state != COMPLETE:
            _agree(ranks, settings)
            _sample(run.root, dataset, replace(smoothed, base=base), sampling, settings, done, progress, ranks)
            seconds = round(settings.seconds + time.monotonic() - began, 3)
            settings = replace(settings, state=COMPLETE, seconds=seconds)
            write_settings(run.root, settings)
        if not is_recorded(run.root):
            _record(run.root, settings)
    ranks.wait()
    return _certified(run.root, settings, inputs - done, time.monotonic() - began)


def _certified(root: Path, settings: CertificateSettings, made: int, seconds: float) -> CertifiedRun:
    return CertifiedRun(settings, read_certificates(root), made / max(seconds, 1e-9))


def _follow(
    run: Run,
    dataset: Dataset,
    smoothed: SmoothedClassifier,
    sampling: Sampling,
    inputs: int,
    device: torch.device,
    ranks: Ranks,
) -> CertifiedRun:
    """Any rank but the first: its part of the inputs, with the settings and the network's form that rank 0 has written."""
    began, done = time.monotonic(), int(ranks.from_first(None))
    settings = read_settings(run.root)
    if settings is None:
        raise RunError("the certification that rank 0 began is not here", where=str(run.root), got="no certificates.json")
    if settings.state != COMPLETE:
        base = smoothed.base_for(dataset.test.inputs[:1], sampling, form=settings.form)
        key = Key(bytes.fromhex(settings.key))
        _agree(ranks, _settings(run, dataset, smoothed, base, sampling, inputs, device, key))
        _sample(run.root, dataset, replace(smoothed, base=base), sampling, settings, done, Silent(), ranks)
    ranks.wait()
    return _certified(run.root, read_settings(run.root) or settings, inputs - done, time.monotonic() - began)


def _agree_first(
    ranks: Ranks, run: Run, dataset: Dataset, smoothed: SmoothedClassifier, sampling: Sampling, inputs: int
) -> None:
    """Before anything in the run is touched: what was asked of every rank is one thing."""
    if ranks is not ALONE:
        asked = [run.model_sha256, repr(smoothed.method), repr(smoothed.noise.sigma), repr(sampling), inputs]
        ranks.agree("the certification", hashlib.sha256(canonical_json(asked).encode()).hexdigest())
        ranks.agree("the test records", fingerprint(dataset.test, bytes.fromhex(run.model_sha256)))


def _agree(ranks: Ranks, settings: CertificateSettings) -> None:
    """Stops all ranks unless they certify by the same network, in the same form, and settings."""
    if ranks is not ALONE:
        same = replace(settings, state=SAMPLING, device=_kind(settings), versions={}, created="", seconds=0.0)
        ranks.agree("the settings of the certification", hashlib.sha256(canonical_json(same.as_dict()).encode()).hexdigest())


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
        slackless_norm=rule.slackless_norm,
    )


def _kind(settings: CertificateSettings) -> str:
    return "cuda" if settings.device.startswith("cuda") else "cpu"


def _inputs_per_batch(settings: CertificateSettings) -> int:
    together = _INPUTS_PER_BATCH_OF_SHARED_NOISE if settings.shared_noise else _INPUTS_PER_BATCH
    if settings.target_radius is not None:
        together = _INPUTS_PER_BATCH_WITH_TARGET
    return together[_kind(settings)]


def _sample(
    root: Path,
    dataset: Dataset,
    smoothed: SmoothedClassifier,
    sampling: Sampling,
    settings: CertificateSettings,
    done: int,
    progress: Progress,
    ranks: Ranks,
) -> None:
    step = _inputs_per_batch(settings)
    # A batch that was cut is made again whole: a network's last bits, and so a tied vote, may depend on the batch.
    done -= done % step
    key = Key(bytes.fromhex(settings.key))
    progress.start("certifying", settings.inputs, done)

    def certified(first: int) -> bytes:
        rows = slice(first, min(first + step, settings.inputs))
        labels = dataset.test.labels[rows].tolist()
        made = smoothed.certify(dataset.test.inputs[rows], labels, sampling=sampling, key=key, first_index=first)
        return json.dumps([asdict(certificate) for certificate in made]).encode()

    with _writer(root, settings, done) if ranks.is_first else nullcontext() as writer:
        for _, made in in_rounds(ranks, range(done, settings.inputs, step), certified):
            certificates = [Certificate(**values) for values in json.loads(made)]
            if writer is not None:
                writer.append(certificates)
            progress.advance(len(certificates))


@contextmanager
def _writer(root: Path, settings: CertificateSettings, done: int) -> Iterator[CertificateWriter]:
    writer = CertificateWriter(root, keep=done, more=settings.needs_more)
    try:
        yield writer
    finally:
        writer.close()


def _record(root: Path, settings: CertificateSettings) -> None:
    guarantees = {**read_run_json(root, GUARANTEES)["guarantees"], "robustness": certified_promise(settings).as_dict()}
    plugin = bound_plugin(find_bound(settings.bound, Law(settings.law)))
    update_run_json(root, files=CERTIFICATE_FILES, guarantees=guarantees, **plugins_entry(root, [plugin]))
