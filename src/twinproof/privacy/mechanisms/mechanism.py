"""What all mechanisms have in common: a privacy profile, read in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from twinproof.privacy.mechanisms.float_search import least_float


class Mechanism(Protocol):
    """Noise of a known law on a query of a known sensitivity.

    Guarantees
        ``delta_at`` and ``epsilon_at`` never under-state: the mechanism is (epsilon, ``delta_at(epsilon)``)-private and
        (``epsilon_at(delta)``, delta)-private, and by at most rounding nothing smaller is true for the worst query of that
        sensitivity. ``delta_at(epsilon_at(delta)) <= delta``.
    """

    theorem: ClassVar[str]

    @property
    def sensitivity(self) -> float:
        """The farthest that neighbours can move the query, in the norm that belongs to the noise."""

    def delta_at(self, epsilon: float) -> float:
        """The smallest delta at that epsilon (0 or above), rounded up."""

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon at that delta, rounded up."""


def least_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """The least float epsilon, 0 included, whose delta does not exceed ``delta``: a profile read the other way round."""
    if delta_at(0.0) <= delta:
        return 0.0
    return least_float(lambda epsilon: delta_at(epsilon) <= delta, 1.0, "epsilon")
