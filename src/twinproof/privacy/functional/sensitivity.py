"""How far one record more or less moves the summed coefficients, in l1: all of them together, counted and not guessed.

One release of noisy coefficients is one Laplace mechanism on one vector. Its sensitivity is the sum over every coefficient of
every class and every feature map that a record touches, because all of them leave together.
"""

from __future__ import annotations

import math

from twinproof.errors import ConfigError
from twinproof.privacy.functional.feature_ball import LEVELS, FeatureBall
from twinproof.privacy.mechanisms.closed_forms import UPWARDS


def class_sums_sensitivity(ball: FeatureBall) -> int:
    """Of the sum of features by class, in levels: a record enters its own class alone, with the l1 norm of its features."""
    return ball.largest_sum


def products_sensitivity(ball: FeatureBall) -> int:
    """Of the sums of h_a h_b, a <= b, in squared levels.

    Guarantees
        sum_{a <= b} |h_a h_b| = (|h|_1^2 + |h|_2^2) / 2 for every h, and both terms are largest together: at a corner of the
        ball for l1, at equal magnitudes for l2 and linf. Nothing smaller is true, up to less than one level.
    """
    return (ball.largest_sum**2 + ball.largest_square) // 2


def polynomial_sensitivity(ball: FeatureBall, classes: int) -> float:
    """Of all monomials of ``output_polynomial`` but the constant, for all classes, rounded up: K (A/2 + A^2/8).

    Guarantees
        One record's coefficients have exactly this l1 norm where |features|_1 is largest, A: |1/2 - y_k| = 1/2 for every class,
        and the monomials w_a w_b with a <= b of (w' h)^2 / 8 add up to |h|_1^2 / 8. Class sums and products (above) tell the
        same polynomial and move far less: they are what ``mechanism`` releases.
    """
    longest = ball.largest_sum * ball.unit
    return classes * (longest / 2 + longest**2 / 8) * UPWARDS


def reconstruction_levels_sensitivity(inputs: int, hidden: FeatureBall, low: int, high: int) -> int:
    """Of all (1/2 - x_j) h_b, in squared levels, for inputs stored as low..high levels and hidden units in ``hidden``."""
    return inputs * max(abs(LEVELS // 2 - low), abs(LEVELS // 2 - high)) * hidden.largest_sum


def reconstruction_sensitivity(inputs: int, hidden: FeatureBall, low: float = 0.0, high: float = 1.0) -> float:
    """Of all coefficients of ``reconstruction_polynomial``, rounded up: d max|1/2 - x| A, A the largest l1 norm of h.

    With a convolution, ``inputs`` is the size of a patch and ``hidden`` holds the units of every position of every map: each
    unit meets its own patch, and one record moves all of them.

    Guarantees
        sum_jb |(1/2 - x_j) h_b| = |1/2 - x|_1 |h|_1 for every record, and nothing smaller is true for inputs in [low, high].
    """
    if inputs < 1 or not (low < high and math.isfinite(high - low)):
        got = f"{inputs} inputs in [{low}, {high}]"
        raise ConfigError("the inputs have no usable bounds", where="inputs", got=got, wanted="at least one, low below high")
    return inputs * max(abs(0.5 - low), abs(0.5 - high)) * hidden.largest_sum * hidden.unit * UPWARDS
