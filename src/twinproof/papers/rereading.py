"""What each robustness bound says of the same votes: sound and published certificates of one model, side by side.

The votes of a run are drawn once. Each bound turns them into a radius, so that a difference between two lines is a difference
between the bounds and never between draws or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from twinproof.certify.bounds.catalogue import find_bound
from twinproof.certify.bounds.confidence import RunnerUp
from twinproof.certify.bounds.evidence import Evidence
from twinproof.certify.bounds.mean_confidence import find_confidence
from twinproof.certify.method import Method
from twinproof.certify.of_run import smoothed_for_run
from twinproof.certify.radius import Certified, RadiusRule
from twinproof.data.record import Dataset
from twinproof.errors import CheckFailed
from twinproof.layers.noise import Law
from twinproof.runs.certificates import CertificateSettings
from twinproof.runs.run import Run

TIGHT, HGM, PIXELDP, PUBLISHED = "tight", "hgm", "pixeldp", "published"
BOUNDS = (TIGHT, HGM, PIXELDP, PUBLISHED)
_AGREEMENT = 2e-6  # two units of the last digit of a recorded radius


@dataclass(frozen=True)
class Rereading:
    """Reads radii off votes, for the noise and the layer of ``settings``; ``paper_norm`` is the papers' sensitivity of it.

    Guarantees
        Radii are those that certifying with that bound would give for these votes. ``published`` is what the paper claims: Eq.
        10 as printed with the sensitivity of a single feature map. It is refuted and is here for comparison.
    """

    settings: CertificateSettings
    paper_norm: float

    @classmethod
    def of(cls, run: Run, dataset: Dataset, settings: CertificateSettings) -> Rereading:
        """For the certificates of a run."""
        method = Method(norm=settings.norm, bound=PUBLISHED)
        claimed = smoothed_for_run(run, dataset, torch.device("cpu"), method=method).operator_norm(tuple(dataset.shape))
        return cls(settings, claimed.value)

    def read(self, bound: str, votes: NDArray[np.int64], draws: int, alpha: float) -> Certified:
        """For each input, whether the votes allow an answer (the same for every bound), and the radius."""
        return self._rule(bound).certified(Evidence.of_votes(draws, votes.astype(np.int64)), alpha)

    def check(self, votes: NDArray[np.int64], recorded: NDArray[np.float64], draws: int, alpha: float) -> None:
        """Refuses to go on where reading the votes again does not give the radii that the run recorded."""
        again = self.read(self.settings.bound, votes, draws, alpha).radii
        worst = float(np.abs(again - recorded).max(initial=0.0))
        if worst > _AGREEMENT:
            raise CheckFailed(
                "reading the votes again gives other radii than the run recorded",
                where=f"bound {self.settings.bound}",
                got=f"a difference of {worst:g}",
                wanted=f"at most {_AGREEMENT:g}",
            )

    def _rule(self, bound: str) -> RadiusRule:
        return RadiusRule(
            bound=find_bound(bound, Law(self.settings.law)),
            confidence=find_confidence(self.settings.confidence),
            runner_up=RunnerUp(self.settings.runner_up),
            classes=self.settings.classes,
            resolution=self.settings.resolution,
            sigma=self.settings.sigma,
            tau=self.settings.tau,
            operator_norm=self.paper_norm if bound == PUBLISHED else self.settings.operator_norm,
            slack=self.settings.slack,
            slackless_norm=self.settings.slackless_norm,
        )
