"""What alpha explains: how many certificates may fail by chance, and whether more were seen to fail.

Guarantees
    ``refuted`` is false for true certificates except with probability at most ``REFUTED_BELOW``. Proof: each input's
    certificate fails with probability at most alpha, an abstention never does, and every flip inside a radius shows that one
    failed (except with ``FALSE_FLIPS`` for all of them). With noise of each input's own the failures are independent, so that
    their number is at most binomial in distribution; with shared noise they may coincide, only the mean is bounded, and
    Markov's inequality takes the place of the tail (it cannot go below alpha: at alpha 0.001 flips under shared noise are
    shown, and counted, but can refute nothing).
    The trials are all inputs that were certified, not those that got an answer: given that an input near the boundary got an
    answer at all, it may be wrong with any probability.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from twinproof.auditing.certificate_judge import FALSE_FLIPS
from twinproof.rounding import round_down, round_up
from twinproof.runs.audits import FLIPPED, UNDECIDED, AttackedCertificate, Verdict

REFUTED_BELOW = 1e-3
BINOMIAL, MARKOV = "binomial", "markov"


def explained_by_chance(flips: int, inputs: int, alpha: float, *, shared_noise: bool) -> float:
    """The largest probability of at least ``flips`` failures among ``inputs`` true certificates."""
    from scipy.special import betainc

    if flips == 0:
        return 1.0
    if shared_noise:
        return min(1.0, inputs * alpha / flips)
    return float(betainc(flips, inputs - flips + 1, alpha))


def nothing_inside(attacked: Sequence[AttackedCertificate], levels: int) -> int:
    """How many of the certificates hold no storable input but their own: only a second look at that could contradict them.

    In every norm the nearest other input is one level of one coordinate away.
    """
    return sum(one.radius * levels <= 1 for one in attacked)


def verdict_of(attacked: Sequence[AttackedCertificate], inputs: int, alpha: float, *, shared_noise: bool) -> Verdict:
    """The attacks on the certificates of ``inputs`` inputs, abstentions counted among them, in one record."""
    flips = sum(one.verdict == FLIPPED for one in attacked)
    chance = explained_by_chance(flips, inputs, alpha, shared_noise=shared_noise)
    ratios = [one.flip.ratio for one in attacked if one.flip is not None]
    return Verdict(
        inputs=inputs,
        attacked=len(attacked),
        flips=flips,
        undecided=sum(one.verdict == UNDECIDED for one in attacked),
        alpha=alpha,
        expected=round_up(inputs * alpha),
        bound=MARKOV if shared_noise else BINOMIAL,
        probability=chance,
        refuted=flips > 0 and chance + FALSE_FLIPS < REFUTED_BELOW,
        closest=min(ratios, default=None),
        median=round_down(statistics.median(ratios)) if ratios else None,
        beyond_reach=len(attacked) - len(ratios),
    )
