"""The heterogeneous analytic mechanism: redistributed noise at the least sigma there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from twinproof.privacy.mechanisms.analytic_gaussian import analytic_gaussian_sigma
from twinproof.privacy.mechanisms.heterogeneous_gaussian import HeterogeneousNoise
from twinproof.privacy.mechanisms.redistribution import Redistribution


@dataclass(frozen=True)
class HeterogeneousAnalytic(HeterogeneousNoise):
    """Redistributed noise calibrated by its exact profile.

    Guarantees
        (epsilon, delta)-private, and for the same r and whitened sensitivity no smaller sigma is: whitening by sqrt(K r)
        (``HeterogeneousNoise``) leaves the analytic Gaussian mechanism, whose condition is necessary and sufficient. Its sigma
        is therefore below that of Theorem 3 everywhere, against the paper's remark that the analytic mechanism cannot
        redistribute.
    """

    theorem: ClassVar[str] = "whitening by sqrt(K r); Balle and Wang 2018, Theorem 8 (necessary and sufficient)"

    @classmethod
    def for_target(cls, epsilon: float, delta: float, sensitivity: float = 1.0, *, redistribution: Redistribution) -> Self:
        """The mechanism with ``analytic_gaussian_sigma`` at the whitened ``sensitivity``."""
        return cls(analytic_gaussian_sigma(epsilon, delta, sensitivity), sensitivity, redistribution=redistribution)
