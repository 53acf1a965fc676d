"""Attacking certificates: searches inside 0.99 of each radius and beyond it, and a judgement that can be believed.

Guarantees
    A certificate is called ``flipped`` only where a storable input, nearer to its input than the radius, was confirmed to
    belong to another class; all confirmations of an audit together are wrong with probability at most ``FALSE_FLIPS``.
    Distances are those of the stored integers. The result for a batch is a function of the batch, the budget and the key, so
    that an audit that was interrupted ends with the same bits (on one machine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.attacks.objective import untouched
from twinproof.attacks.search import Looker, global_seed
from twinproof.auditing.certificate_judge import FALSE_FLIPS, Judge
from twinproof.auditing.certificate_search import AttackBudget, Balls, CertificateSearch, Ray, likely_rivals
from twinproof.auditing.certificate_verdict import FLIPPED, HELD, UNDECIDED, AttackedCertificate, Flip
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.evaluation.protocols import smoothed_objective
from twinproof.guarantee import round_down
from twinproof.keys import Key
from twinproof.runs.records import ABSTAIN, Certificate

WITHIN = 0.99
OUTWARD = 3.0
# The shortest ray is confirmed from a little before the place where the boundary seemed to be, through few votes, up to the
# end of the search: the rungs are a few percent apart, and halving them and "none of them" takes this many confirmations.
_BEFORE, _RUNGS, _LADDER_ROUNDS = 0.85, 63, 6
_INSIDE = ("input", "ascent", "direction", "walk")
CONFIRMATIONS = len(_INSIDE) + _LADDER_ROUNDS
# A distance that the certificate excludes, with room for the last bits of float64.
_STRICTLY = 1 - 1e-12


@dataclass(frozen=True)
class CertificateAttacker:
    """Attacks certificates in ``norm`` of one smoothed classifier: its network's gradients lead the search, its votes judge.

    ``means`` are the mean inputs of all classes, in [0, 1]; ``attackable`` is the number of certificates in the whole audit.
    """

    smoothed: SmoothedClassifier
    norm: str
    means: Tensor
    attackable: int
    budget: AttackBudget
    key: Key
    shared_noise: bool = False

    @property
    def level(self) -> float:
        """The failure probability of one confirmation: what all of them may spend, shared equally."""
        return FALSE_FLIPS / (CONFIRMATIONS * max(1, self.attackable))

    def attack(self, stored: Tensor, certificates: Sequence[Certificate]) -> list[AttackedCertificate]:
        """Attacks each certificate, none of them an abstention or without a radius; ``stored`` holds its inputs, in levels."""
        if not certificates:
            return []
        device, batch = self.means.device, certificates[0].index
        balls = Balls(
            self.norm,
            stored.to(device, torch.float64),
            torch.tensor([one.radius for one in certificates], dtype=torch.float64, device=device),
            self.smoothed.levels,
        )
        certified = torch.tensor([one.prediction for one in certificates], device=device)
        budget = self.budget
        judge = Judge(
            self.smoothed,
            self.key,
            batch,
            shared_noise=self.shared_noise,
            screen=budget.screen,
            votes=budget.votes,
            level=self.level,
        )
        generator = torch.Generator(device).manual_seed(self.key.seed("audit-search", batch))
        objective = smoothed_objective(self.smoothed, budget.draws)
        with untouched(objective.model), global_seed(self.key.seed("audit-layers", batch), device):
            rivals = likely_rivals(objective, balls.inputs, certified, generator)
            looker = Looker(objective, balls.inputs, generator)
            search = CertificateSearch(balls, certified, rivals, looker, judge, budget, generator)
            candidates, ray = _searched(search, balls, budget, self.means)
        findings = _Findings(balls, certificates)
        for name, (points, margins) in candidates.items():
            findings.confirm(judge, name, points, margins < judge.clear)
        _confirm_ray(findings, judge, balls, ray)
        return findings.attacked()


Candidates = dict[str, tuple[Tensor, NDArray[np.float64]]]


def _searched(search: CertificateSearch, balls: Balls, budget: AttackBudget, means: Tensor) -> tuple[Candidates, Ray]:
    """The best candidate of each search inside the radius, with its margin, and the shortest ray to the boundary."""
    climbed, of_climbed = search.strongest(search.ascents(WITHIN, budget.restarts), WITHIN)
    straight, of_straight = search.strongest(search.straight_on(means), WITHIN)
    ray = search.walk([climbed, straight, *search.ascents(OUTWARD, budget.restarts)], OUTWARD)
    inside = balls.radii * WITHIN
    walked = balls.storable(ray.directions, inside)
    found = (
        (balls.stored, search.screen(balls.stored).margins),
        (balls.storable(climbed, inside), of_climbed),
        (balls.storable(straight, inside), of_straight),
        (walked, search.screen(walked).margins),
    )
    return dict(zip(_INSIDE, found, strict=True)), ray


def _confirm_ray(findings: _Findings, judge: Judge, balls: Balls, ray: Ray) -> None:
    """Confirms the flip nearest to where the ray meets the boundary, by halving the rungs of a ladder."""
    end = balls.radii * OUTWARD
    start = (ray.lengths * _BEFORE).minimum(end)
    found = ray.lengths.isfinite().cpu().numpy()
    low, high = np.zeros(len(found), dtype=np.int64), np.full(len(found), _RUNGS, dtype=np.int64)
    for _ in range(_LADDER_ROUNDS):
        middle = (low + high) // 2
        asked = found & (low < high)
        height = torch.from_numpy(middle / (_RUNGS - 1)).to(end)
        points = balls.storable(ray.directions, start ** (1 - height) * end**height)
        flipped = findings.confirm(judge, "walk", points, asked)
        low, high = np.where(asked & ~flipped, middle + 1, low), np.where(asked & flipped, middle, high)


class _Findings:
    """What was confirmed of each certificate of a batch."""

    def __init__(self, balls: Balls, certificates: Sequence[Certificate]) -> None:
        self._balls, self._certificates = balls, certificates
        self._flips: list[Flip | None] = [None] * len(certificates)
        self._doubts = [False] * len(certificates)

    def confirm(self, judge: Judge, name: str, points: Tensor, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Judges the points of the rows that are ``asked`` about; says which of them are flips."""
        flipped = np.zeros(len(asked), dtype=np.bool_)
        rows = np.flatnonzero(asked)
        if not len(rows):
            return flipped
        distances = self._balls.measure(points).tolist()
        answers = judge.confirm(points[torch.from_numpy(rows).to(points.device)])
        for row, answer in zip(rows.tolist(), answers, strict=True):
            certificate = self._certificates[row]
            inside = distances[row] < certificate.radius * _STRICTLY
            if answer.prediction == ABSTAIN:
                self._doubts[row] |= inside
            elif answer.prediction != certificate.prediction:
                flipped[row] = True
                self._keep(row, answer, distances[row], name, points[row] if inside else None)
        return flipped

    def _keep(self, row: int, answer: Certificate, distance: float, name: str, point: Tensor | None) -> None:
        earlier = self._flips[row]
        if earlier is not None and earlier.distance <= distance:
            return
        ratio = round_down(distance / self._certificates[row].radius)
        stored = None if point is None else tuple(int(level) for level in point.flatten().tolist())
        self._flips[row] = Flip(distance, ratio, answer.prediction, answer.votes, answer.draws, name, stored)

    def attacked(self) -> list[AttackedCertificate]:
        """The certificates with their verdicts; a flip inside the radius goes before a doubt."""
        return [
            AttackedCertificate(one.index, one.prediction, one.radius, _verdict(flip, doubt), flip)
            for one, flip, doubt in zip(self._certificates, self._flips, self._doubts, strict=True)
        ]


def _verdict(flip: Flip | None, doubt: bool) -> str:
    if flip is not None and flip.stored is not None:
        return FLIPPED
    return UNDECIDED if doubt else HELD
