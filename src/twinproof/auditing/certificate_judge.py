"""Asking the smoothed classifier about candidates, with noise that is neither the certificate's nor that of the search.

Guarantees
    A confirmed flip is a fact except with probability ``level``: the candidate was fixed before a single draw of its
    confirmation was made (each call has draws of its own), and CERTIFY's bound (n0 draws choose the class, fresh ones bound it)
    proves that another class has more than half of the probability there, or of the mean score where certificates go by scores.
    The audit sets ``level`` so that all its confirmations together are wrong with probability at most ``FALSE_FLIPS``.
    It is one-sided: a point where another class wins without a majority is not counted, so that with many classes the closest
    flip may really be a little closer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twinproof.certification.method import CertificateSettings, Method, Sampling
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.certification.votes import row_statistic
from twinproof.keys import Key
from twinproof.runs.records import Certificate

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
    method = settings.method
    return Method(norm=method.norm, statistic=method.statistic, confidence=_CONFIDENCE[method.statistic])


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
