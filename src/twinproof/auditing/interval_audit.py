"""Attacks on certificates by interval bounds: projected gradients on the network itself, inside each radius.

These certificates claim certainty, so that a single other answer inside a radius is a defect. Nothing is written: there is no
chance to be weighed, and a defect is one of the program or of the evaluation (TF32 for example, which is not covered).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from twinproof import checks
from twinproof.certification.interval_run import IntervalCertification, interval_certifications
from twinproof.certification.method import certifications
from twinproof.compute.devices import matrix_products, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.progress import Progress, Silent
from twinproof.runs.records import Certificate
from twinproof.runs.run import Run, load_run_data

_ROWS = {"cpu": 64, "cuda": 2048}
# Of the size: large steps first, to get anywhere, then small ones.
_FAR, _NEAR = 0.5, 0.05


@dataclass(frozen=True)
class IntervalFlip:
    """Another ``answer`` of the network, at ``distance`` from an input whose certificate excludes it."""

    index: int
    prediction: int
    answer: int
    distance: float
    radius: float


@dataclass(frozen=True)
class IntervalAudit:
    """What attacks on the certificates called ``of`` found, among those with a radius of the first ``inputs``."""

    of: str
    inputs: int
    attacked: int
    steps: int
    restarts: int
    flips: tuple[IntervalFlip, ...]

    @property
    def verdict(self) -> str:
        """``refuted``, ``not refuted`` or ``nothing to attack``."""
        if not self.attacked:
            return "nothing to attack"
        return "refuted" if self.flips else "not refuted"


def audit_intervals(
    run: Run,
    dataset: Dataset | None = None,
    *,
    certificates: str | None = None,
    limit: int | None = None,
    steps: int = 100,
    restarts: int = 3,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> IntervalAudit:
    """Attacks every deterministic certificate of the first ``limit`` inputs (all by default) at its full radius.

    ``certificates`` names the certification; by default it is the only one. Each of ``restarts`` begins at a random point of
    the ball. A flip counts where the network gives another answer in float64, or in float32 on a CPU: both are covered.
    """
    checks.whole(1, steps=steps, restarts=restarts)
    dataset = dataset or load_run_data(run)
    run.refuse_other_data(dataset)
    found = _certification(run, certificates)
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
    target, bars = resolve_device(device), progress or Silent()
    search = _Search(run.model(target), dataset.levels, steps, restarts, torch.Generator(target).manual_seed(seed))
    flips: list[IntervalFlip] = []
    bars.start("attacking", len(claims))
    for first in range(0, len(claims), _ROWS[target.type]):
        some = claims[first : first + _ROWS[target.type]]
        stored = torch.from_numpy(dataset.test.inputs[[one.index for one in some]].astype("float64")).to(target)
        flips += search.flips(stored, some)
        bars.advance(len(some))
    return IntervalAudit(found.name, len(lines), len(claims), steps, restarts, tuple(flips))


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


def is_about_intervals(root: str | Path, certificates: str | None) -> bool:
    """Whether ``certificates`` names a certification by interval bounds, or none is named and the run has no other kind."""
    bounded = interval_certifications(root)
    return certificates in bounded if certificates is not None else bool(bounded) and not certifications(root)


@dataclass
class _Search:
    """Projected gradient ascents on how far another class is above the certified one."""

    network: nn.Module
    levels: int
    steps: int
    restarts: int
    generator: torch.Generator

    def __post_init__(self) -> None:
        self.network.requires_grad_(False)
        self._exact = copy.deepcopy(self.network).double()

    def flips(self, stored: Tensor, claims: list[Certificate]) -> list[IntervalFlip]:
        """The first flip of each claim that has one."""
        centre = stored / self.levels
        shape = (-1, *(1,) * (stored.ndim - 1))
        radii = torch.tensor([one.radius for one in claims], dtype=torch.float64, device=stored.device)
        low, high = (centre - radii.reshape(shape)).clamp(min=0), (centre + radii.reshape(shape)).clamp(max=1)
        own = torch.tensor([one.prediction for one in claims], device=stored.device)
        found: dict[int, IntervalFlip] = {}
        with matrix_products(False), torch.backends.cudnn.flags(allow_tf32=False):
            for _ in range(self.restarts):
                point = low + torch.rand(low.shape, generator=self.generator, dtype=low.dtype, device=low.device) * (high - low)
                for step in range(self.steps + 1):
                    point = point.float()
                    scores, gradient = self._ascended(point, own)
                    self._note(found, point, centre, scores, claims)
                    pace = radii.reshape(shape) * (_FAR if step < self.steps // 2 else _NEAR)
                    point = torch.minimum(torch.maximum(point.double() + pace * gradient.sign(), low), high)
        return list(found.values())

    def _ascended(self, point: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        leaf = point.detach().requires_grad_(True)
        scores = self.network(leaf)
        others = scores.scatter(1, own[:, None], -math.inf).amax(1)
        gradient = torch.autograd.grad((others - scores.gather(1, own[:, None])[:, 0]).sum(), leaf)[0]
        return scores.detach(), gradient

    def _note(
        self, found: dict[int, IntervalFlip], point: Tensor, centre: Tensor, scores: Tensor, claims: list[Certificate]
    ) -> None:
        """Confirms what looks like a flip."""
        for row in (scores.argmax(1).cpu() != torch.tensor([one.prediction for one in claims])).nonzero()[:, 0].tolist():
            one = claims[row]
            exact = int(self._exact(point[row : row + 1].double()).argmax())
            answers = {exact} | ({int(scores[row].argmax())} if point.device.type == "cpu" else set())
            if row not in found and answers != {one.prediction}:
                distance = float((point[row].double() - centre[row]).abs().max())
                answer = next(iter(answers - {one.prediction}))
                found[row] = IntervalFlip(one.index, one.prediction, answer, distance, one.radius)
