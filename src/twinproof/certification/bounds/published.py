"""HGM's bound as it is printed, with a factor epsilon too many. It does not hold; for comparison only."""

from __future__ import annotations

from twinproof.certification.bounds.bound import Charge
from twinproof.certification.bounds.hgm import HGM
from twinproof.guarantee import Status

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
