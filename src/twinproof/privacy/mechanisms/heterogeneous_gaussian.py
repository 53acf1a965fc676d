"""The Heterogeneous Gaussian Mechanism (Phan et al., IJCAI 2019, Theorem 3): noise redistributed over the outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from twinproof.privacy.mechanisms.closed_forms import UPWARDS
from twinproof.privacy.mechanisms.extended_gaussian import extended_gaussian_sigma
from twinproof.privacy.mechanisms.gaussian import GaussianNoise
from twinproof.privacy.mechanisms.redistribution import Redistribution


@dataclass(frozen=True)
class HeterogeneousNoise(GaussianNoise):
    """N(0, sigma^2 K r) on a query A; ``sensitivity`` is the whitened one, max ||(A(D) - A(D')) / sqrt(K r)||_2.

    Guarantees
        Those of ``Mechanism``, for every r and sigma. Proof: S = diag(sqrt(K r)) does not depend on the data and is invertible
        (every share is above 0), so that A + S sigma xi and S^-1 A + sigma xi are post-processings of each other and have one
        profile; the latter is Gaussian noise of one deviation on a query of that l2 sensitivity. Hence redistribution is no
        property of one calibration: every sigma that is valid without it is valid with it. Tests: the hockey-stick divergence
        of the heterogeneous densities themselves, by integration and by sampling; r not normalised, sqrt forgotten, caught.
    """

    redistribution: Redistribution = field(kw_only=True)

    def deviations(self) -> NDArray[np.float64]:
        """Standard deviation of each output's noise, sigma sqrt(K r), rounded up: more noise is a post-processing of less."""
        return self.sigma * self.redistribution.scales() * UPWARDS


@dataclass(frozen=True)
class HeterogeneousGaussian(HeterogeneousNoise):
    """Redistributed noise with the sigma of the paper's theorem; ``HeterogeneousAnalytic`` needs less for the same promise."""

    theorem: ClassVar[str] = "Phan et al. 2019, Theorem 3 (Condition 1 for delta > 0.798)"

    @classmethod
    def for_target(cls, epsilon: float, delta: float, sensitivity: float = 1.0, *, redistribution: Redistribution) -> Self:
        """The mechanism with ``extended_gaussian_sigma`` at the whitened ``sensitivity``."""
        return cls(extended_gaussian_sigma(epsilon, delta, sensitivity), sensitivity, redistribution=redistribution)
