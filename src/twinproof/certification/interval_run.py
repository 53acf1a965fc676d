"""Certifying the test set of a run by interval bounds: deterministic radii in linf of the network itself."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Unpack

import torch

from twinproof.certification.interval import STEPS, UNDECIDED, IntervalNetwork
from twinproof.certification.method import BEST, CSV, INTERVAL, KeptCertification, certifications, is_interval
from twinproof.compute.devices import FLOAT32, describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.guarantee import Guarantee, Kind, Status, round_down
from twinproof.keys import Key
from twinproof.privacy.linear_maps import Norm
from twinproof.runs import work
from twinproof.runs.reading import CLOSED, Count, Length, Radius, read_json
from twinproof.runs.records import (
    CERTIFICATES,
    Certificate,
    Made,
    NetworkRecord,
    WorkSettings,
    check_name,
    default_name,
    evidence,
    format_deterministic,
    json_file,
    read_certificates,
)
from twinproof.runs.run import Run, load_run_data
from twinproof.runs.work import How, Options, Work

LARGEST_RADIUS = 1.0
# Inputs certified and made durable together; a batch of a GPU is a fraction of a second.
_INPUTS_PER_BATCH = {"cpu": 100, "cuda": 10_000}
_FORM = "interval bounds, computed in float64"


@dataclass(frozen=True)
class IntervalMethod:
    """How radii are made; in linf, by the only bound that is deterministic."""

    __pydantic_config__: ClassVar = CLOSED

    norm: str = Norm.LINF
    bound: str = INTERVAL


@dataclass(frozen=True, kw_only=True)
class IntervalSettings(WorkSettings):
    """What all certificates of one certification share; radii are multiples of ``step``, rounded down to six places.

    ``network.arithmetic`` is the least precise one in which the network may run.
    """

    method: IntervalMethod
    levels: Count
    step: Length
    largest_radius: Radius

    @property
    def decided_radius(self) -> float:
        """The largest radius at which certified accuracy means something."""
        return self.largest_radius


def read_interval_settings(path: Path) -> IntervalSettings:
    """The content of such a ``certificates.json``."""
    return read_json(path, fix="restore the file, or certify again with --overwrite").typed(IntervalSettings)


class IntervalCertification(KeptCertification[IntervalSettings]):
    """One by interval bounds."""


def interval_certifications(root: str | Path) -> dict[str, IntervalCertification]:
    """Those of a run, by name."""
    found = {name: path for name, path in evidence(Path(root), CERTIFICATES).items() if is_interval(path)}
    return {name: IntervalCertification(name, path, read_interval_settings(path)) for name, path in found.items()}


def is_about_intervals(root: str | Path, certificates: str | None) -> bool:
    """Whether ``certificates`` names a certification by interval bounds, or none is named and the run has no other kind."""
    bounded = interval_certifications(root)
    return certificates in bounded if certificates is not None else bool(bounded) and not certifications(root)


@dataclass(frozen=True)
class IntervalCertifiedRun:
    """What ``certify_intervals`` made, and under which name."""

    name: str
    settings: IntervalSettings
    certificates: list[Certificate]
    images_per_second: float


@system_faults("run the same command again: it goes on where it stopped")
def certify_intervals(
    run: Run, dataset: Dataset | None = None, *, limit: int | None = None, **options: Unpack[Options]
) -> IntervalCertifiedRun:
    """Certifies the first ``limit`` test inputs of ``run`` (all by default) by interval bounds, with certainty.

    A prediction is the network's own answer. Its radius is the largest multiple of 2^-20, rounded down to six places, up to
    which interval bounds show that no change in linf, cut to [0, 1], changes that answer: 0 where they show it of none. The
    ``options`` are those of ``certify``; the default name is ``linf-interval``. Several ranks share the inputs.

    Guarantees
        - Every radius was proven at its own size, for the network run in float32 or float64 by sums of products in any order.
        - Whatever is refused is refused before anything in the run is touched; a network with another layer than those of
          ``interval`` is refused by the name of the first one.
        - Interrupted at any moment and resumed on the same machine, it ends with the same certificates to the byte.
    """
    how, began = How(**options), time.monotonic()
    dataset = dataset or load_run_data(run)
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to certify", where="limit", got=limit, wanted="at least 1 input")
    run.refuse_other_data(dataset)
    device = resolve_device(how.device)
    bounds = IntervalNetwork.of(run.model(device), tuple(dataset.shape))
    inputs = min(limit or len(dataset.test), len(dataset.test))
    place = work.Place(run.root, CERTIFICATES, check_name(how.name or default_name(Norm.LINF, INTERVAL, BEST)))
    how.ranks.check_device(device)

    def prepare(earlier: IntervalSettings | None, key: Key) -> IntervalSettings:
        return IntervalSettings(
            network=NetworkRecord(run.model_sha256, _FORM, FLOAT32, bounds.classes),
            inputs=inputs,
            key=key.secret.hex(),
            made=Made.now(describe_device(device)),
            method=IntervalMethod(),
            levels=dataset.levels,
            step=1 / STEPS,
            largest_radius=LARGEST_RADIUS,
        )

    with work.begun(place, IntervalSettings, prepare, _finished, records=dataset.test, how=how) as begun:
        if not begun.complete:
            _make(begun, bounds, dataset, device, began)
    settings = read_interval_settings(place.settings)
    lines = read_certificates(place.path(CSV))
    if [one.index for one in lines] != list(range(settings.inputs)):
        raise RunError(
            "the certificates are not the ones that certificates.json describes",
            where=str(place.path(CSV)),
            got=f"{len(lines)} lines",
            wanted=f"the inputs 0 to {settings.inputs - 1} in order",
            fix="restore the file, or certify again with --overwrite",
        )
    return IntervalCertifiedRun(place.name, settings, lines, begun.made / max(time.monotonic() - began, 1e-9))


def _finished(path: Path) -> IntervalSettings:
    if not is_interval(path):
        raise RunError(
            "this run has certificates of another kind under that name",
            where=str(path),
            got="randomized smoothing",
            wanted="interval bounds",
            fix="--overwrite replaces them; --name keeps both",
        )
    return read_interval_settings(path)


def _make(begun: Work[IntervalSettings], bounds: IntervalNetwork, dataset: Dataset, device: torch.device, began: float) -> None:
    """Makes the certificates that are missing, and finishes."""
    step, inputs, test = _INPUTS_PER_BATCH[device.type], begun.settings.inputs, dataset.test
    rows = {f"{first:09d}.json": range(first, min(first + step, inputs)) for first in range(0, inputs, step)}

    def batch(name: str) -> bytes:
        mine = rows[name]
        # Not every torch operation takes unsigned 16-bit levels.
        stored = torch.from_numpy(test.inputs[mine.start : mine.stop].astype("int64")).to(device)
        answers = bounds.answers(stored, dataset.levels)
        steps = bounds.radii(stored, dataset.levels, answers)
        made = zip(mine, test.labels[mine.start : mine.stop].tolist(), answers.tolist(), steps.tolist(), strict=True)
        return json.dumps([asdict(_certificate(*one)) for one in made]).encode()

    sizes = {name: len(mine) for name, mine in rows.items()}
    lines = [
        Certificate(**values) for _, content in begun.batches("certifying", sizes, batch) for values in json.loads(content)
    ]
    settings = begun.completed(begun.settings, time.monotonic() - began)
    files = {CSV: format_deterministic(lines), "certificates.json": json_file(settings.as_dict())}
    begun.finish(files, {begun.place.name: interval_promise(settings)})


def _certificate(index: int, label: int, answer: int, steps: int) -> Certificate:
    radius = 0.0 if steps == UNDECIDED else round_down(steps / STEPS)
    return Certificate(index, label, answer, votes=0, top=answer, radius=radius)


_THEOREM = (
    "Interval bound propagation (Gowal et al. 2018) with outward rounding, which includes what the network's own sums err in "
    "float32 (Higham 2002, chapters 3 and 4)"
)
_ASSUMPTIONS = (
    "The linf distance is measured in input units ([0, 1] per coordinate), and the changed input lies in [0, 1] itself.",
    "The answer is that of the network alone with exactly these weights, without any noise.",
    "The network runs in float32 or float64, its layers as sums of products in any order; Winograd and Fourier transforms, "
    "TF32, bfloat16 and float16 are not covered.",
)


def interval_promise(settings: IntervalSettings) -> Guarantee:
    """What a complete certification by interval bounds promises: with certainty, so that no failure probability is named."""
    norm = settings.method.norm
    return Guarantee(
        Kind.ROBUSTNESS,
        Status.PROVEN,
        f"For each certified input, with certainty: no change of up to its radius ({norm}, inputs in [0, 1]) changes the "
        "network's answer.",
        theorem=_THEOREM,
        assumptions=_ASSUMPTIONS,
        values=(("largest_radius", settings.largest_radius), ("norm", norm), ("bound", settings.method.bound)),
    )
