"""Reading the votes of a certified run again by other bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from twinproof.certification.catalogue import find_bound, status_of
from twinproof.certification.confidence import Evidence
from twinproof.certification.method import Method
from twinproof.certification.radius import Certified, RadiusRule
from twinproof.certification.record import CertificateSettings
from twinproof.certification.run import smoothed_for_run
from twinproof.data.record import Dataset
from twinproof.errors import CheckFailed
from twinproof.guarantee import Status
from twinproof.layers.fixed_draws import FixedDraws
from twinproof.layers.noise import Law
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof.runs.run import Run

TIGHT, HGM, PIXELDP, COMPOSITION, PUBLISHED = "tight", "hgm", "pixeldp", "composition", "published"
_GAUSSIAN = (TIGHT, HGM, PIXELDP, PUBLISHED)
_LAPLACE = (TIGHT, PIXELDP)
_BOTH_PLACES = (TIGHT, COMPOSITION)
_OF_THEIR_OWN_NORM = (COMPOSITION, PUBLISHED)
_AGREEMENT = 2e-6  # two units of the last digit of a recorded radius


def bounds_for(place: str, law: str, *, fixed_draws: bool) -> tuple[str, ...]:
    """The bounds by which votes are read, for noise of ``law`` at ``place``.

    ``published`` is what a paper claims for such noise: Eq. 10 as printed for Gaussian noise, and Appendix N of StoBatch where
    the network has ``fixed_draws``, beside which it draws less than it states. With noise at two places that is all drawn anew
    the claim is ``composition``, which holds; for one Laplace noise no paper here claims anything.
    """
    if place == BOTH_PLACES:
        return (*_BOTH_PLACES, PUBLISHED) if fixed_draws else _BOTH_PLACES
    return _GAUSSIAN if law == Law.GAUSSIAN else _LAPLACE


@dataclass(frozen=True)
class Rereading:
    """Reads radii off votes: one rule for each bound, all for the noise that was drawn."""

    recorded: str
    rules: Mapping[str, RadiusRule]

    @classmethod
    def of(cls, run: Run, dataset: Dataset, settings: CertificateSettings) -> Rereading:
        """For the certificates of a run. Their own norm serves every bound that is charged no other one."""
        method = Method(norm=settings.method.norm, bound=settings.method.bound)
        smoothed = smoothed_for_run(run, dataset, torch.device("cpu"), sigma=settings.noise.sigma, method=method)
        bounds = bounds_for(settings.noise.place, settings.noise.law, fixed_draws=has_fixed_draws(smoothed.model))
        others = {
            bound: replace(smoothed, method=replace(method, bound=bound)).radius_rule(
                tuple(dataset.shape), settings.network.classes
            )
            for bound in bounds
            if bound in _OF_THEIR_OWN_NORM
        }
        return cls(settings.method.bound, {bound: others.get(bound) or recorded_rule(settings, bound) for bound in bounds})

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bounds that can be read here."""
        return tuple(self.rules)

    def status(self, bound: str) -> Status:
        """How far a radius of this bound may be trusted."""
        return status_of(self.rules[bound].bound)

    def read(self, bound: str, votes: NDArray[np.int64], draws: int, alpha: float) -> Certified:
        """For each input, whether the votes allow an answer (the same for every bound), and the radius."""
        return self.rules[bound].certified(Evidence.of_votes(draws, votes.astype(np.int64)), alpha)

    def check(self, votes: NDArray[np.int64], recorded: NDArray[np.float64], draws: int, alpha: float) -> None:
        """Refuses to go on where reading the votes again does not give the radii that the run recorded."""
        again = self.read(self.recorded, votes, draws, alpha).radii
        worst = float(np.abs(again - recorded).max(initial=0.0))
        if worst > _AGREEMENT:
            raise CheckFailed(
                "reading the votes again gives other radii than the run recorded",
                where=f"bound {self.recorded}",
                got=f"a difference of {worst:g}",
                wanted=f"at most {_AGREEMENT:g}",
            )


def has_fixed_draws(network: nn.Module) -> bool:
    """Whether the network adds noise that was drawn once, which no certificate may count."""
    return any(isinstance(module, FixedDraws) for module in network.modules())


def recorded_rule(settings: CertificateSettings, bound: str) -> RadiusRule:
    """What ``bound`` makes of votes under the noise, the norm and the confidence that the certificates record."""
    return RadiusRule(
        bound=find_bound(bound, Law(settings.noise.law)),
        classes=settings.network.classes,
        sigma=settings.noise.sigma,
        tau=settings.noise.tau,
        method=settings.method,
        operator_norm=settings.noise.operator_norm,
        slack=settings.noise.slack,
        slackless_norm=settings.noise.slackless_norm,
    )
