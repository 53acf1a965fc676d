"""Attacks on certificates by interval bounds: projected gradients on the network itself, inside each radius.

These certificates claim certainty, so that a single other answer inside a radius is a defect: of the program or of the
evaluation (TF32 for example, which is not covered).
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Unpack

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from twinproof import checks
from twinproof.auditing.audit import bound_digest, refuse_to_forget
from twinproof.auditing.interval_verdict import (
    FoundFlip,
    IntervalAudit,
    IntervalAuditSettings,
    IntervalBudget,
    IntervalFlip,
    IntervalVerdict,
    keep_some_points,
    read_interval_audit,
)
from twinproof.certification.interval_run import (
    IntervalCertification,
    IntervalSettings,
    interval_certifications,
    interval_promise,
)
from twinproof.compute.devices import FLOAT32, describe_device, matrix_products, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.evaluation.attack_record import AttackLine
from twinproof.guarantee import Guarantee, Status
from twinproof.keys import Key
from twinproof.runs import work
from twinproof.runs.records import AUDITS, Certificate, Made, NetworkRecord, check_name
from twinproof.runs.run import Run, load_run_data
from twinproof.runs.work import How, Options, Place, Work

_ROWS = {"cpu": 64, "cuda": 2048}
# Of the size: large steps first, to get anywhere, then small ones.
_FAR, _NEAR = 0.5, 0.05
_FORM = "the network alone"
_FLIPS: TypeAdapter[list[FoundFlip]] = TypeAdapter(list[FoundFlip])


@system_faults("run the same command again: it goes on where it stopped")
def audit_intervals(
    run: Run,
    dataset: Dataset | None = None,
    *,
    budget: IntervalBudget | None = None,
    limit: int | None = None,
    certificates: str | None = None,
    **options: Unpack[Options],
) -> IntervalAudit:
    """Attacks every deterministic certificate of the first ``limit`` inputs (all by default) at its full radius.

    ``certificates`` names the certification; by default it is the only one. The ``options`` are those of ``certify``; the
    default name is that of the certification. A flip counts where the network gives another answer in float64, or in float32
    on a CPU: both are covered.

    Guarantees
        - A flip is a point of float32 numbers in [0, 1], no further away than the radius.
        - Interrupted at any moment and resumed on the same machine (with a CPU), it ends with the same findings.
        - ``run.json`` binds the audit once it is complete; with one flip the promise has the status ``refuted`` there.
    """
    how, budget, began = How(**options), budget or IntervalBudget(), time.monotonic()
    checks.whole(1, steps=budget.steps, restarts=budget.restarts)
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to attack", where="limit", got=limit, wanted="at least 1 input")
    dataset = dataset or load_run_data(run)
    run.refuse_other_data(dataset)
    found = _certification(run, certificates)
    lines_sha256, settings_sha256 = bound_digest(run, found.csv), bound_digest(run, found.path)
    if not found.is_of(run):
        raise RunError(
            "the certificates are about other weights",
            where=str(found.path),
            got=found.settings.network.model_sha256[:12],
            wanted=f"{run.model_sha256[:12]}, the digest of {run.layout.model.name}",
            fix="certify the run again with --overwrite",
        )
    lines = found.certificates[:limit]
    claims = [one for one in lines if one.radius > 0]
    device = resolve_device(how.device)
    place = Place(run.root, AUDITS, check_name(how.name or found.name))
    if how.overwrite and place.bound():
        refuse_to_forget(place, lines_sha256)

    def prepare(earlier: IntervalAuditSettings | None, key: Key) -> IntervalAuditSettings:
        return IntervalAuditSettings(
            network=NetworkRecord(run.model_sha256, _FORM, FLOAT32, found.settings.network.classes),
            inputs=len(lines),
            key=key.secret.hex(),
            made=Made.now(describe_device(device)),
            of=found.name,
            certificates_sha256=lines_sha256,
            settings_sha256=settings_sha256,
            norm=found.settings.method.norm,
            attackable=len(claims),
            budget=budget,
        )

    def finished(path: Path) -> IntervalAuditSettings:
        return read_interval_audit(path, place.name).settings

    with work.begun(place, IntervalAuditSettings, prepare, finished, records=dataset.test, how=how) as begun:
        if not begun.complete:
            search = _Search(run.model(device), dataset.levels, begun.settings.budget)
            _make(claims, found.settings, dataset, search, begun, began)
    return read_interval_audit(place.settings, place.name)


def _make(
    claims: Sequence[Certificate],
    certified: IntervalSettings,
    dataset: Dataset,
    search: _Search,
    begun: Work[IntervalAuditSettings],
    began: float,
) -> None:
    """Attacks what was not attacked yet, and finishes."""
    device, settings = search.device, begun.settings
    step = _ROWS[device.type]
    batches = {f"{first:09d}.json": claims[first : first + step] for first in range(0, len(claims), step)}

    def batch(name: str) -> bytes:
        some = batches[name]
        stored = torch.from_numpy(dataset.test.inputs[[one.index for one in some]].astype("float64")).to(device)
        generator = torch.Generator(device).manual_seed(settings.secret.seed("interval-audit", some[0].index))
        return json.dumps([asdict(one) for one in search.flips(stored, some, generator)]).encode()

    sizes = {name: len(some) for name, some in batches.items()}
    flips = [one for _, made in begun.batches("attacking", sizes, batch) for one in _FLIPS.validate_json(made)]
    verdict = IntervalVerdict.of(settings, len(flips))
    done = begun.completed(settings, time.monotonic() - began)
    audited = IntervalAudit(begun.place.name, done, keep_some_points(flips), verdict)
    refuted = {settings.of: _refuted_promise(certified, verdict, begun.place)} if verdict.refuted else {}
    begun.finish({begun.place.settings.name: audited.content()}, refuted)


def _refuted_promise(settings: IntervalSettings, verdict: IntervalVerdict, place: Place) -> Guarantee:
    reason = (
        f"attacks changed {verdict.flips} certified answers of {verdict.inputs} inputs inside their radii, which interval "
        f"bounds exclude with certainty ({place.relative(place.settings)})"
    )
    return replace(interval_promise(settings), status=Status.REFUTED, reason=reason)


def _certification(run: Run, name: str | None) -> IntervalCertification:
    found = interval_certifications(run.root)
    chosen = found.get(name) if name is not None else next(iter(found.values()), None) if len(found) == 1 else None
    if chosen is None:
        raise RunError(
            "this run has no certificates by interval bounds of that name",
            where=str(run.root),
            got=name or "no name",
            wanted=", ".join(found) or "a run certified by interval bounds",
            fix=f"twinproof certify {run.root} --bound interval",
        )
    return chosen


def contradicted(run: Run, lines: Sequence[AttackLine]) -> tuple[IntervalFlip, ...]:
    """Answers of the network in the results of ``attack`` that certificates by interval bounds of these weights exclude.

    A change is never longer in linf than in l2 or l1, and lengths are rounded up: whatever is as short as the radius is inside.
    """
    found = []
    for certification in interval_certifications(run.root).values():
        claims = {one.index: one for one in certification.certificates} if certification.is_of(run) else {}
        for line in lines:
            one = claims.get(line.index)
            if one is not None and line.length <= one.radius and line.network != one.prediction:
                found.append(IntervalFlip(one.index, one.prediction, line.network, line.length, one.radius))
    return tuple(found)


@dataclass
class _Search:
    """Projected gradient ascents on how far another class is above the certified one."""

    network: nn.Module
    levels: int
    budget: IntervalBudget

    def __post_init__(self) -> None:
        self.network.requires_grad_(False)
        self._exact = copy.deepcopy(self.network).double()

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def flips(self, stored: Tensor, claims: Sequence[Certificate], generator: torch.Generator) -> list[FoundFlip]:
        """The first flip of each claim that has one, in their order."""
        centre = stored / self.levels
        sizes = torch.tensor([one.radius for one in claims], dtype=torch.float64, device=stored.device)
        sizes = sizes.reshape(-1, *(1,) * (stored.ndim - 1))
        low, high = _inside((centre - sizes).clamp(min=0), (centre + sizes).clamp(max=1))
        own = torch.tensor([one.prediction for one in claims], device=stored.device)
        found: dict[int, FoundFlip] = {}
        with matrix_products(False), torch.backends.cudnn.flags(allow_tf32=False):
            for _ in range(self.budget.restarts):
                point = low + torch.rand(low.shape, generator=generator, device=low.device) * (high - low)
                for step in range(self.budget.steps + 1):
                    point = torch.minimum(torch.maximum(point, low), high)
                    scores, gradient = self._ascended(point, own)
                    self._note(found, point, centre, scores, claims)
                    pace = sizes * (_FAR if step < self.budget.steps // 2 else _NEAR)
                    point = (point.double() + pace * gradient.sign()).float()
        return [found[row] for row in sorted(found)]

    def _ascended(self, point: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        leaf = point.detach().requires_grad_(True)
        scores = self.network(leaf)
        others = scores.scatter(1, own[:, None], -math.inf).amax(1)
        gradient = torch.autograd.grad((others - scores.gather(1, own[:, None])[:, 0]).sum(), leaf)[0]
        return scores.detach(), gradient

    def _note(
        self, found: dict[int, FoundFlip], point: Tensor, centre: Tensor, scores: Tensor, claims: Sequence[Certificate]
    ) -> None:
        """Confirms what looks like a flip."""
        for row in (scores.argmax(1).cpu() != torch.tensor([one.prediction for one in claims])).nonzero()[:, 0].tolist():
            one = claims[row]
            if row in found:
                continue
            exact = int(self._exact(point[row : row + 1].double()).argmax())
            answers = {exact} | ({int(scores[row].argmax())} if point.device.type == "cpu" else set())
            if answers != {one.prediction}:
                distance = float((point[row].double() - centre[row]).abs().max())
                answer = next(iter(answers - {one.prediction}))
                where = tuple(point[row].flatten().tolist())
                found[row] = FoundFlip(one.index, one.prediction, answer, distance, one.radius, where)


def _inside(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a box in float32, rounded inwards."""
    up, down = torch.tensor(math.inf, device=low.device), torch.tensor(-math.inf, device=low.device)
    least, most = low.float(), high.float()
    least = torch.where(least.double() < low, torch.nextafter(least, up), least)
    return least, torch.where(most.double() > high, torch.nextafter(most, down), most)
