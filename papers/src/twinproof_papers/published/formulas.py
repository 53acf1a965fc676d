"""Published noise formulas and sensitivities that do NOT keep (epsilon, delta), as they were printed or run.

For comparison only. Status of all of them: refuted. Each function says where it fails, and the tests say by how much.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms import check_target
from twinproof.privacy.redistribution import Redistribution


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


def paper_delta_r(inputs: int, hidden: int) -> int:
    """Lemma 2: Delta_R = d (beta + 2) for inputs and hidden units in [-1, 1] (MNIST: 25 x (14^2 + 2) = 4950).

    What it forgets
        - It counts h_b / 2 and x_j as coefficients of their own. The objective holds their products (1/2 - x_j) h_b, whose sum
          over j and b reaches 1.5 d beta for one record more and 3 d beta for one replaced: above d (beta + 2) from 5 hidden
          units on, and from 2.
        - With a convolution d is one patch and beta one feature map: a record moves all maps at once (32 on MNIST).
        - h = theta' x depends on the parameters: data enter through sum_i x_i x_i', which gets no noise of its own.
        - The noise it scales is one draw for every record, batch and step, so that differences of records are free of it.
    """
    return _positive("inputs", inputs) * (_positive("hidden units", hidden) + 2)


def paper_delta_l2(features: int) -> int:
    """Lemma 4: Delta_L2 = 2 |h_pi| for the coefficients h y_k of the labels, features in [-1, 1] (2 x 256 everywhere).

    What it forgets
        - It is true, for one record replaced, of the sums of h y_k alone. The rest of the polynomial (h / 2 for every class
          and h h' / 8) is called post-processing of a layer whose own release is refuted; with it, a record moves the
          coefficients by K (A/2 + A^2/8), A = |h_pi|.
        - The noise it scales has |h_pi| entries for K |h_pi| coefficients: differences of two classes get none.
        - Each step reads the labels again under the same draw, so that differences of steps get none.
    """
    return 2 * _positive("features", features)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"the number of {name} cannot be used", where=name, got=value, wanted="at least 1")
    return value
