"""Judging what attacks on certificates found: candidates are asked about with fresh noise, and alpha explains some flips.

Guarantees
    - A confirmed flip is a fact except with probability ``level``: the candidate was fixed before a single draw of its
      confirmation was made (each call has draws of its own), and CERTIFY's bound (n0 draws choose the class, fresh ones bound
      it) proves that another class has more than half of the probability there, or of the mean score where certificates go by
      scores. All confirmations of an audit together are wrong with probability at most ``FALSE_FLIPS``. It is one-sided: a
      point where another class wins without a majority is not counted.
    - ``refuted`` is false for true certificates except with probability at most ``REFUTED_BELOW``. Proof: each input's
      certificate fails with probability at most alpha, an abstention never does, and every flip inside a radius shows that one
      failed. With noise of each input's own the failures are independent, so that their number is at most binomial; with
      shared noise they may coincide, only the mean is bounded, and Markov's inequality takes the place of the tail (it cannot
      go below alpha: at alpha 0.001 flips under shared noise are counted, but can refute nothing). The trials are all inputs
      that were certified: given that an input near the boundary got an answer at all, it may be wrong with any probability.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twinproof.certification.method import Method, Sampling
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.certification.votes import row_statistic
from twinproof.keys import Key
from twinproof.rounding import round_down, round_up
from twinproof.runs.audits import FLIPPED, UNDECIDED, AttackedCertificate, Verdict
from twinproof.runs.certificates import Certificate, CertificateSettings

FALSE_FLIPS = 1e-6
_CONFIDENCE = {"votes": "clopper-pearson", "scores": "hoeffding"}
# Draws that choose the class of a candidate, as a number for a screen and as a share of the votes of a confirmation. If they
# choose badly, as near a tie they may, a flip is overlooked, never invented.
_SELECTION, _SELECTION_SHARE = 50, 0.1
_SCREEN_ALPHA = 0.05  # of no consequence: a screen looks at the votes, not at a bound
CROSSED = -0.5


def judging_method(settings: CertificateSettings) -> Method:
    """How the classifier of some certificates is asked: by the statistic that it was certified by, and for a majority.

    Another statistic would be another classifier. The bound, and how a runner-up was bounded, only turn answers into radii.
    """
    confidence = _CONFIDENCE.get(settings.statistic, "")  # Method names what it does not know
    return Method(norm=settings.norm, statistic=settings.statistic, confidence=confidence)


@dataclass(frozen=True)
class Screen:
    """What few draws say: ``leaders``, and as ``margins`` the share of the certified class where it leads, else minus the
    leader's. Below ``CROSSED`` another class seems to have the majority.
    """

    margins: NDArray[np.float64]
    leaders: NDArray[np.int64]


class Judge:
    """Judges the candidates of one batch. ``batch`` numbers it, so that no two batches share noise unless told so.

    With ``shared_noise`` the classifier is the one that such certificates are about, and rows of one call share their draws;
    each row's confirmation stays valid by itself, which is all that a union over them needs. Above the margin ``clear`` the
    certified class is ahead by four deviations.
    """

    def __init__(
        self, smoothed: SmoothedClassifier, key: Key, batch: int, *, shared_noise: bool, screen: int, votes: int, level: float
    ) -> None:
        self._smoothed, self._key, self._batch, self._calls = smoothed, key, batch, 0
        self._screen = Sampling(_SELECTION, screen, _SCREEN_ALPHA, shared_noise=shared_noise)
        chosen_on = max(_SELECTION, round(_SELECTION_SHARE * votes))
        self._confirm = Sampling(chosen_on, votes, level, shared_noise=shared_noise)
        self.clear = 0.5 + 2 / screen**0.5

    def screen(self, stored: Tensor, certified: Sequence[int]) -> Screen:
        """A cheap look at each row."""
        made = self._ask(stored, self._screen)
        leaders = np.array([one.top for one in made], dtype=np.int64)
        whole = self._screen.n * row_statistic(self._smoothed.method.statistic).resolution
        shares = np.array([one.votes for one in made]) / whole
        return Screen(np.where(leaders == np.asarray(certified), shares, -shares), leaders)

    def confirm(self, stored: Tensor) -> list[Certificate]:
        """A certificate for each row, at ``level``: a class with a proven majority, or an abstention."""
        return self._ask(stored, self._confirm)

    def _ask(self, stored: Tensor, sampling: Sampling) -> list[Certificate]:
        key = Key(self._key.stream("audit-judge", self._batch, self._calls, length=32))
        self._calls += 1
        return self._smoothed.certify(stored.long(), sampling=sampling, key=key)


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
