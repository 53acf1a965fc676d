"""What is known of an operator norm: a bound that it cannot exceed, and a value that an actual input reaches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# An upper and a lower bound this close to each other, relatively, count as the norm itself.
EXACT_WITHIN = 1e-6


class Norm(StrEnum):
    """The norms in which inputs and outputs are measured."""

    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


@dataclass(frozen=True)
class Bound:
    """An operator norm between ``lower`` and ``value``.

    Guarantees
        ``lower <= norm <= value``, rounding included. ``value`` is what noise and radii may rest on; ``lower`` is reached by
        an input that was tried, and only shows how tight ``value`` is. ``method`` says in words where ``value`` comes from.
    """

    value: float
    lower: float
    method: str

    @property
    def exact(self) -> bool:
        """Whether the two bounds meet to within one part in a million; measured, not claimed."""
        return self.value <= self.lower * (1 + EXACT_WITHIN)
