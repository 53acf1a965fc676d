"""Bounds as their papers use them, which do not hold: ``--bound published``. For comparison only."""

from __future__ import annotations

from twinproof.certification.bounds import HGM, Charge, Composition
from twinproof.guarantee import Status
from twinproof.layers.noise_placement import BOTH_PLACES

PAPER_DELTA = 1e-5


class PublishedHGM(HGM):
    """Eq. 10 of Phan et al. 2019 as printed: sigma = g(epsilon, delta) m / epsilon, although g already holds 1 / epsilon.

    Refuted: where epsilon* is above 1 the claim is epsilon* times what Theorem 3 gives. Scores 0.9999 and 0.0001 claim 4.0817
    deviations, and a halfspace with those scores changes its answer at 3.7190. Sound instead: ``HGM``, or ``TightGaussian``.
    """

    name = "published"
    theorem = "none: Phan et al. 2019, Eq. 10 as printed"
    status = Status.REFUTED
    charge = Charge.CLAIMED
    reason = "Eq. 10 divides by epsilon twice; a halfspace with scores 0.9999 and 0.0001 changes its answer inside the radius"

    def __init__(self, *, delta: float = PAPER_DELTA) -> None:
        super().__init__(delta=delta)

    def _inverse(self, epsilon: float, delta: float) -> float:
        return epsilon * super()._inverse(epsilon, delta)


class PublishedComposition(Composition):
    """``Composition`` with the scales that are stated, while the noise drawn at inference is psi times smaller.

    The formula is the same; what is false is what it is divided by (``Charge.CLAIMED``). Refuted as a rule: only noise that is
    drawn anew makes an answer random, and every radius is psi times that of ``Composition``. Single ones may still be true, and
    for psi <= 2 all are: psi kappa phi / (kappa + phi) <= max(kappa, phi), which two noises in one pass give (``rates``), so
    that ``TightLaplace`` proves no less, but for slack. For psi = 10, the paper's on CIFAR-10, they are false there too. The
    confidence bound is a choice beside it, as with any other (the paper has Hoeffding's, on scores).
    """

    name = "published"
    theorem = "none: Phan et al. 2020, Corollary 1 with the noise stated in Appendix N"
    status = Status.REFUTED
    reason = (
        "Appendix N computes with noise that is psi times larger than what is drawn, which proves nothing: scores 0.9 and 0.1 "
        "under one noise of scale 1 claim 1.0986, and at psi = 2 a half-space with these scores changes its answer at 0.8047 "
        "(its score at the claim is 0.2778). Proven of two noises in one pass are the bounds 'tight' and 'composition', "
        "for the noise that is drawn"
    )
    charge = Charge.CLAIMED
    place = BOTH_PLACES
