"""A public bound on one record's features, and features as whole numbers inside it.

The coefficients of an objective are products of features. Whole numbers make their sums exact, whatever the order and however
many records, so that what one record adds is known without any rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.targets import check_positive
from twinproof.privacy.sensitivity.bound import Norm

LEVEL_BITS = 15
LEVELS = 1 << LEVEL_BITS
"""A feature at the bound is stored as this number. Products have 30 bits: sums over 2^23 records are exact in float64."""

_MOST_FEATURES = 2**20


@dataclass(frozen=True)
class FeatureBall:
    """Feature vectors of ``features`` numbers whose length in ``norm`` is at most ``radius``: declared, never measured.

    Guarantees
        ``levels`` gives every record as whole numbers v with |v| <= 2^15 in ``norm``, exactly, whatever the record holds; one
        with a NaN or an infinity becomes zero. Proof: in linf the numbers are cut off. Otherwise they are scaled by
        (1 - room) 2^15 / length where that is below 1; length is off by less than half of ``room`` (a sum of d squares or
        magnitudes, a root, a quotient and a product), and dropping the fraction makes no number longer. A record's numbers
        depend on that record alone. Test: exact integers, random and extreme records; rounding to the nearest level and a box
        in place of the ball as planted bugs.
    """

    norm: Norm
    radius: float
    features: int

    def __post_init__(self) -> None:
        if self.norm not in tuple(Norm):
            raise ConfigError("unknown norm of features", where="norm", got=self.norm, wanted=", ".join(Norm))
        check_positive("radius", self.radius)
        if not 1 <= self.features <= _MOST_FEATURES:
            wanted = f"1 to {_MOST_FEATURES}"
            raise ConfigError("the number of features cannot be used", where="features", got=self.features, wanted=wanted)

    @property
    def unit(self) -> float:
        """What one level is worth."""
        return self.radius / LEVELS

    @property
    def largest_sum(self) -> int:
        """The largest sum of magnitudes of a record's levels: its l1 norm."""
        if self.norm is Norm.L2:
            return math.isqrt(self.features * LEVELS**2)
        return LEVELS if self.norm is Norm.L1 else self.features * LEVELS

    @property
    def largest_square(self) -> int:
        """The largest sum of squares of a record's levels."""
        return LEVELS * LEVELS * (self.features if self.norm is Norm.LINF else 1)

    def levels(self, features: Tensor) -> Tensor:
        """(records, features) of any floats -> whole numbers in float64 inside the ball."""
        if features.ndim != 2 or features.shape[1] != self.features:
            raise ConfigError(
                "the features have another shape than their bound",
                where="features",
                got=tuple(features.shape),
                wanted=f"(records, {self.features})",
            )
        values = features.detach().to(torch.float64) / self.radius * LEVELS
        values = torch.where(values.isfinite().all(1, keepdim=True), values, 0.0)
        if self.norm is Norm.LINF:
            return values.clamp(-LEVELS, LEVELS).trunc()
        room = (self.features + 8) * 2.0**-52
        lengths = torch.linalg.vector_norm(values, ord=1 if self.norm is Norm.L1 else 2, dim=1, keepdim=True)
        scaled: Tensor = values * (LEVELS * (1 - room) / lengths).clamp(max=1.0)
        return scaled.trunc()

    def clip(self, features: Tensor) -> Tensor:
        """The features that the mechanism counts: inside the ball, on multiples of ``unit``, float64."""
        return self.levels(features) * self.unit
