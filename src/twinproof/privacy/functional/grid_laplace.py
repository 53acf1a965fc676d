"""The Laplace mechanism on whole numbers: sensitivity, noise and accounting event, built only together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import ConfigError
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.functional.discrete_laplace import LARGEST_SCALE, discrete_laplace
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.mechanisms.targets import check_positive
from twinproof.randomness import Key

LARGEST_SUM = 2**53
_LARGEST_RELEASE = 2**61
_PURPOSE = "functional mechanism"


@dataclass(frozen=True)
class GridLaplace:
    """Laplace noise on a vector of whole numbers of which one record moves at most ``moved``, by ``sensitivity`` in l1.

    Guarantees
        - A release is (1 / ``noise_multiplier``, 0)-private, and (epsilon, delta)-private wherever ``event`` is. Proof of the
          first: P(k) = c exp(-|k| / scale) on whole numbers, and scale >= noise_multiplier * sensitivity. Of the second: let
          one number move by v. The profile of the discrete noise meets 1 - exp((epsilon - v / scale) / 2), the continuous one,
          at epsilon = (v - 2k) / scale for every k, and between two of them it is at most its value at the lower one: it is
          below the continuous profile of a move by v + 2. Moves of several numbers add up (``laplace_delta``), so that
          ``sensitivity + 2 moved`` covers them; the scale is computed with it.
        - What leaves are whole numbers: no low-order bits of floats. The noise is exact (``discrete_laplace``).
    """

    sensitivity: int
    moved: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive("noise multiplier", self.noise_multiplier)
        for name, value in (("sensitivity", self.sensitivity), ("moved", self.moved)):
            if value < 1:
                raise ConfigError(f"the {name} cannot be used", where=name, got=value, wanted="a whole number above 0")
        if self.scale > LARGEST_SCALE:
            raise ConfigError(
                "the noise is too large for the grid",
                where="noise multiplier",
                got=f"{self.noise_multiplier} at sensitivity {self.sensitivity}",
                wanted=f"a scale of at most 2^{LARGEST_SCALE.bit_length() - 1} steps",
                fix="allow a larger epsilon, or use fewer features",
            )

    @property
    def event(self) -> LaplaceEvent:
        """What the accountants count."""
        return LaplaceEvent(self.noise_multiplier)

    @property
    def scale(self) -> int:
        """Scale of the noise in steps of the grid."""
        return math.ceil(Fraction(self.noise_multiplier) * (self.sensitivity + 2 * self.moved))

    def announce(self, ledger: Ledger, purpose: str) -> AnnouncedLaplace:
        """Writes down what is about to be spent; the one release that it pays for can be made when this returns."""
        ledger.append("laplace", {"noise_multiplier": self.noise_multiplier, "purpose": purpose})
        return AnnouncedLaplace(self, ledger.entries[-1].index)

    def noisy(self, sums: NDArray[np.int64], key: Key, counter: int) -> NDArray[np.int64]:
        """The sums plus noise of their own each, from the stream ``counter``; nothing is counted: use ``announce``."""
        if sums.size and int(np.abs(sums).max()) > LARGEST_SUM:
            wanted = "sums of at most 2^53"
            raise ConfigError(
                "the sums are too large", where="sums", got="a larger sum", wanted=wanted, fix="use fewer records"
            )
        noise = discrete_laplace(key, _PURPOSE, counter, scale=self.scale, count=sums.size)
        released = np.clip(sums.reshape(-1) + noise, -_LARGEST_RELEASE, _LARGEST_RELEASE)
        return np.asarray(released.reshape(sums.shape), dtype=np.int64)


class AnnouncedLaplace:
    """One release that is in the ledger; ``GridLaplace.announce`` makes it.

    Guarantees
        It releases once: the noise of one line of the ledger serves one vector.
    """

    def __init__(self, mechanism: GridLaplace, line: int) -> None:
        self._mechanism = mechanism
        self._line = line
        self._released = False

    def release(self, sums: NDArray[np.int64], key: Key) -> NDArray[np.int64]:
        """The sums plus noise."""
        if self._released:
            where, got = f"ledger line {self._line}", "a second release"
            raise ConfigError("the noise of one release would be used twice", where=where, got=got, wanted="one release")
        self._released = True
        return self._mechanism.noisy(sums, key, self._line)
