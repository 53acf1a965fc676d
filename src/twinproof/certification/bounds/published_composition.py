"""StoBatch's bound as it is used by its Appendix N, for noise larger than the noise that is drawn. For comparison only."""

from __future__ import annotations

from twinproof.certification.bounds.bound import Charge
from twinproof.certification.bounds.composition import Composition
from twinproof.guarantee import Status
from twinproof.layers.noise import BOTH_PLACES


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
