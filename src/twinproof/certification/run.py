"""Certifying the test set of a run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Unpack, overload

import torch
from torch import nn

from twinproof.certification.catalogue import best_bound, bound_plugin, find_bound, refuse_loose
from twinproof.certification.method import (
    BEST,
    CSV,
    INTERVAL,
    PLAIN,
    CertificateSettings,
    Method,
    Sampling,
    read_certificate_settings,
)
from twinproof.certification.promise import certified_promise
from twinproof.certification.radius import largest_radius
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer
from twinproof.privacy.linear_maps import Norm
from twinproof.runs import work
from twinproof.runs.records import (
    CERTIFICATES,
    Certificate,
    Made,
    NetworkRecord,
    check_name,
    default_name,
    format_certificates,
    json_file,
    read_certificates,
)
from twinproof.runs.run import Run, load_run_data
from twinproof.runs.work import How, Options, Work

if TYPE_CHECKING:
    from twinproof.certification.interval_run import IntervalCertifiedRun

# Inputs certified and made durable together: a kill loses at most these. With a target an input gets far fewer draws, and
# at the later looks only a few of the inputs are left to fill a forward pass. Shared noise is made once for all of them.
_INPUTS_PER_BATCH = {"cpu": 8, "cuda": 400}
_INPUTS_PER_BATCH_WITH_TARGET = {"cpu": 128, "cuda": 4000}
_INPUTS_PER_BATCH_OF_SHARED_NOISE = {"cpu": 32, "cuda": 400}


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
    return smooth(network, sigma, levels=dataset.levels, method=chosen, input_shape=tuple(dataset.shape))


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


@dataclass(frozen=True)
class CertifiedRun:
    """What ``certify`` made, and under which name."""

    name: str
    settings: CertificateSettings
    certificates: list[Certificate]
    images_per_second: float


@overload
def certify(
    run: Run,
    dataset: Dataset | None = None,
    *,
    sampling: Sampling,
    method: Method | None = None,
    sigma: float | None = None,
    limit: int | None = None,
    **options: Unpack[Options],
) -> CertifiedRun: ...


@overload
def certify(
    run: Run,
    dataset: Dataset | None = None,
    *,
    sampling: Sampling | None = None,
    method: Method | None = None,
    sigma: float | None = None,
    limit: int | None = None,
    **options: Unpack[Options],
) -> CertifiedRun | IntervalCertifiedRun: ...


@system_faults("run the same command again: it goes on where it stopped")
def certify(
    run: Run,
    dataset: Dataset | None = None,
    *,
    sampling: Sampling | None = None,
    method: Method | None = None,
    sigma: float | None = None,
    limit: int | None = None,
    **options: Unpack[Options],
) -> CertifiedRun | IntervalCertifiedRun:
    """Certifies the first ``limit`` test inputs of ``run`` (all by default) and records the guarantee in ``run.json``.

    ``sigma`` replaces the deviation of the run's noise, ``method`` plain CERTIFY in the run's norm (``smoothed_for_run``). A
    run of the recipe ``interval`` for which none of ``sampling``, ``method`` and ``sigma`` is given, or any run with a
    ``method`` whose bound is ``interval``, is certified without noise (``interval_run.certify_intervals``).

    The ``options`` are ``name``, ``overwrite``, ``key``, ``device``, ``progress`` and ``ranks`` (``runs.work.How``). A run
    holds several certifications; the default ``name`` is the norm, with the bound where it is not the best. An interrupted
    certification with the same settings is resumed; one with other settings is replaced only with ``overwrite``.

    Guarantees
        - Whatever is refused is refused before anything in the run is touched.
        - Interrupted at any moment and resumed on the same machine, it ends with the same certificates to the byte.
        - ``run.json`` promises robustness only while it binds the digests of a complete certification.
        - The certificates are the same to the byte for any number of ranks: noise belongs to the input, and the batches of
          inputs are those of one rank.
    """
    if _without_draws(run, sampling, method, sigma):
        from twinproof.certification.interval_run import certify_intervals  # smoothing does not need it

        return certify_intervals(run, dataset, limit=limit, **options)
    how, began = How(**options), time.monotonic()
    dataset = dataset or load_run_data(run)
    job = _Certifying.of(run, dataset, sampling or Sampling(), method, sigma, limit, how.device)
    usual = default_name(job.method.norm, job.method.bound, best_bound(job.smoothed.noise.law))
    place = work.Place(run.root, CERTIFICATES, check_name(how.name or usual))
    how.ranks.check_device(job.device)

    def prepare(earlier: CertificateSettings | None, wanted: Key) -> CertificateSettings:
        settings = job.settings(earlier, wanted)
        largest, asked = settings.largest_radius, settings.sampling
        how.bars.say(f"largest radius that n={asked.n} at alpha={asked.alpha:g} allows: {largest:.6f}")
        return settings

    with work.begun(place, CertificateSettings, prepare, read_certificate_settings, records=dataset.test, how=how) as begun:
        if not begun.complete:
            job.make(begun, began)
    settings = read_certificate_settings(place.settings)
    lines = _complete_lines(place, settings)
    return CertifiedRun(place.name, settings, lines, begun.made / max(time.monotonic() - began, 1e-9))


def default_bound(run: Run) -> str:
    """The bound that a run is certified by where none is asked for: interval bounds where it was trained for them."""
    return INTERVAL if run.record["config"].get("recipe") == INTERVAL else BEST


def _without_draws(run: Run, sampling: Sampling | None, method: Method | None, sigma: float | None) -> bool:
    """Whether interval bounds were asked for; refused together with what speaks of draws."""
    drawn = [name for name, value in (("sampling", sampling), ("sigma", sigma)) if value is not None]
    if method is None:
        return not drawn and default_bound(run) == INTERVAL
    if method.bound != INTERVAL:
        return False
    drawn += [] if method.is_plain else ["statistic, confidence or runner_up"]
    if drawn:
        raise ConfigError(
            "interval bounds draw nothing, so that these settings have no meaning",
            where="bound",
            got=f"{method.bound} with {', '.join(drawn)}",
            wanted="the bound without them",
            fix="leave them out; or the bound tight, which certifies by randomized smoothing",
        )
    if method.norm != Norm.LINF:
        raise ConfigError(
            "interval bounds give radii in linf",
            where="norm",
            got=f"{method.norm} with {method.bound}",
            wanted=str(Norm.LINF),
            fix="the norm linf; or the bound tight, which certifies by randomized smoothing",
        )
    return True


@dataclass
class _Certifying:
    """A certification that was asked for, checked as far as it can be before earlier work is looked at."""

    run: Run
    dataset: Dataset
    sampling: Sampling
    device: torch.device
    inputs: int
    smoothed: SmoothedClassifier

    @classmethod
    def of(
        cls,
        run: Run,
        dataset: Dataset,
        sampling: Sampling,
        method: Method | None,
        sigma: float | None,
        limit: int | None,
        device: str,
    ) -> _Certifying:
        if limit is not None and limit < 1:
            raise ConfigError("there is nothing to certify", where="limit", got=limit, wanted="at least 1 input")
        run.refuse_other_data(dataset)
        target = resolve_device(device)
        smoothed = smoothed_for_run(run, dataset, target, sigma=sigma, method=method)
        sampling.refuse_other_methods(smoothed.method)
        refuse_loose(smoothed.method, smoothed.noise.law, smoothed.site.place)
        return cls(run, dataset, sampling, target, min(limit or len(dataset.test), len(dataset.test)), smoothed)

    @property
    def method(self) -> Method:
        return self.smoothed.method

    def settings(self, earlier: CertificateSettings | None, key: Key) -> CertificateSettings:
        """The settings with the network in the form in which earlier work of this kind counted its votes on such a device."""
        alike = earlier is not None and earlier.sampling.shared_noise == self.sampling.shared_noise
        form = earlier.form_on(self.device.type) if earlier is not None and alike else None
        base = self.smoothed.base_for(self.dataset.test.inputs[:1], self.sampling, form=form)
        self.smoothed = replace(self.smoothed, base=base)
        shape = tuple(self.dataset.shape)
        rule = self.smoothed.radius_rule(shape, base.classes)
        return CertificateSettings(
            network=NetworkRecord(self.run.model_sha256, base.form, base.arithmetic, base.classes),
            inputs=self.inputs,
            key=key.secret.hex(),
            made=Made.now(describe_device(self.device)),
            method=self.method,
            sampling=self.sampling,
            looks=self.sampling.schedule.looks,
            noise=self.smoothed.noise_record(shape, base.classes),
            resolution=rule.resolution,
            largest_radius=largest_radius(self.sampling, rule),
        )

    def make(self, begun: Work[CertificateSettings], began: float) -> None:
        step = self._inputs_per_batch()
        rows = {f"{first:09d}.json": range(first, min(first + step, self.inputs)) for first in range(0, self.inputs, step)}
        test = self.dataset.test

        def batch(name: str) -> bytes:
            mine = slice(rows[name].start, rows[name].stop)
            certificates = self.smoothed.certify(
                test.inputs[mine],
                test.labels[mine].tolist(),
                sampling=self.sampling,
                key=begun.settings.secret,
                first_index=mine.start,
            )
            return json.dumps([asdict(one) for one in certificates]).encode()

        sizes = {name: len(inputs) for name, inputs in rows.items()}
        lines = [
            Certificate(**values) for _, content in begun.batches("certifying", sizes, batch) for values in json.loads(content)
        ]
        settings = begun.completed(begun.settings, time.monotonic() - began)
        begun.finish(
            {CSV: format_certificates(lines, more=settings.needs_more), "certificates.json": json_file(settings.as_dict())},
            {begun.place.name: certified_promise(settings)},
            [bound_plugin(find_bound(self.method.bound, Law(settings.noise.law)))],
        )

    def _inputs_per_batch(self) -> int:
        together = _INPUTS_PER_BATCH_OF_SHARED_NOISE if self.sampling.shared_noise else _INPUTS_PER_BATCH
        if self.sampling.target_radius is not None:
            together = _INPUTS_PER_BATCH_WITH_TARGET
        return together[self.device.type]


def _complete_lines(place: work.Place, settings: CertificateSettings) -> list[Certificate]:
    path = place.path(CSV)
    lines = read_certificates(path)
    if [one.index for one in lines] != list(range(settings.inputs)):
        raise RunError(
            "the certificates are not the ones that certificates.json describes",
            where=str(path),
            got=f"{len(lines)} lines",
            wanted=f"the inputs 0 to {settings.inputs - 1} in order",
            fix="restore the file, or certify again with --overwrite",
        )
    return lines
