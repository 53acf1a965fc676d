"""What every robustness bound is: from bounds on two probabilities to a distance that no change of the answer can undercut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinproof.guarantee import Status
from twinproof.layers.noise import Law

Floats = NDArray[np.float64]


class Charge(StrEnum):
    """What a change of the input is charged, which decides the norm that a reach is divided by."""

    PROVEN = "proven"  # the least that is proven for the noise that is drawn
    COMPOSED = "composed"  # what each of several noises charges, added up: sound, and more
    CLAIMED = "claimed"  # what the bound's paper says, true or not


class RobustnessBound(ABC):
    """Reads, off two expected scores, how far the noisy layer may be shifted before the answer can change.

    The scores are those of a function with values in [0, 1] behind noise of law ``law`` and deviation 1 (Laplace: scale 1).

    Guarantees
        Where the top class's expected score is at least ``low`` and every other one's at most ``high``, the top class stays on
        top under every shift smaller than ``reach(low, high)`` in l2 (Gaussian) or l1 (Laplace) - for a bound whose ``status``
        is proven, by its ``theorem``. The reach is 0 where low <= high or one of them is NaN, never negative, and up to
        rounding grows with ``low`` and falls with ``high``. It works on each pair alone.
    """

    name: ClassVar[str]
    law: ClassVar[Law]
    theorem: ClassVar[str]
    status: ClassVar[Status] = Status.PROVEN
    reason: ClassVar[str] = ""  # why the status is not proven
    charge: ClassVar[Charge] = Charge.PROVEN
    place: ClassVar[str | None] = None  # where the noise has to be, for a bound that speaks of one place alone

    @final
    def reach(self, low: ArrayLike, high: ArrayLike) -> Floats:
        """The largest shift, in deviations, below which the answer cannot change; elementwise, rounded down."""
        # A confidence bound less tau may leave [0, 1]; brought back to it, it says the same.
        clipped = (np.clip(np.asarray(value, dtype=np.float64), 0.0, 1.0) for value in (low, high))
        lows, highs = np.broadcast_arrays(*clipped)
        result, decided = np.zeros(lows.shape, dtype=np.float64), lows > highs
        # Inputs with as many votes have the same pair, and a bound may have to search.
        pairs = np.stack((lows[decided], highs[decided]), axis=1)
        different, which = np.unique(pairs, axis=0, return_inverse=True)
        reached = np.maximum(self._reach(different[:, 0], different[:, 1]), 0.0)
        result[decided] = reached[which.reshape(-1)]
        return result

    @abstractmethod
    def _reach(self, low: Floats, high: Floats) -> Floats:
        """The reach of pairs, each of them once, with 1 >= low > high >= 0."""
