"""Published noise formulas that do NOT keep (epsilon, delta), as they were printed or run; for comparison only.

Status of all of them: refuted. Nothing that makes a promise may use this file; each function says where it fails, and the exact
profile in tests/privacy/test_privacy_mechanism_paper.py says by how much.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.redistribution import Redistribution
from twinproof.privacy.mechanisms.targets import check_target


def paper_classic_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The textbook formula at any epsilon, as the program behind Secure-SGD used it (up to epsilon 4).

    Refuted above epsilon 8.42 at delta 1e-5 and 7.46 at delta 1e-3: at epsilon 16 its delta is 34 and 32 times the promised
    one. Sound instead: ``classic_gaussian_sigma``, which refuses epsilon above 1, or ``analytic_gaussian_sigma``.
    """
    check_target(epsilon, delta, sensitivity)
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def paper_extended_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Theorems 2 and 3 with s = ln(sqrt(2) / (pi delta)), as they are printed.

    Refuted for delta just below sqrt(2)/pi = 0.4502 and large epsilon: epsilon 1000, delta 0.45 gives 1.068 times the promised
    delta. Above 0.4502 it has no value. Sound instead: ``extended_gaussian_sigma``, whose s the proof derives.
    """
    check_target(epsilon, delta, sensitivity)
    s = math.log(math.sqrt(2) / math.pi / delta)
    if s < 0:
        raise ConfigError("the printed formula has no value", where="delta", got=delta, wanted="delta <= sqrt(2)/pi = 0.4502")
    return sensitivity * (math.sqrt(s) + math.sqrt(s + epsilon)) / math.sqrt(2) / epsilon


def paper_heterogeneous_deviations(sigma: float, redistribution: Redistribution) -> NDArray[np.float64]:
    """sigma K r, as in the authors' program: the theorem's variance sigma^2 K r wants sigma sqrt(K r), the root was forgotten.

    Refuted for every r that is not uniform: an output with K r < 1 has noise too small by the factor sqrt(K r). Sound instead:
    ``HeterogeneousNoise.deviations``.
    """
    return sigma * redistribution.dimension * np.asarray(redistribution.shares, dtype=np.float64)
