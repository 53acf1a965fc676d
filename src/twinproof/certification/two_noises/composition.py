"""Composition of robustness over S mechanisms, as published (Phan et al. 2020, Lemma 5, Theorem 5, Corollary 1).

True, and right for a score that is a product of S separate passes, each with one noise. For one pass with all noises it is
needlessly small: ``rates`` has what that is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.targets import check_positive


def composed_epsilon(epsilons: Sequence[float]) -> float:
    """Lemma 5: a function of S mechanisms that are epsilon_s-private is private with their sum; rounded up.

    Guarantees
        Never below the sum. Proof of the lemma: for independent mechanisms the joint density is a product, each factor of it
        changes by at most e^epsilon_s, and the expectation of a function into [0, 1] by no more than the density.
    """
    return _float_at(sum(map(Fraction, _checked("epsilon", epsilons)), Fraction(0)), upwards=True)


def robustness_size(noise_scale: float, epsilon: float, sensitivity: float) -> float:
    """kappa (input) or phi (hidden): the size at which Laplace noise of that scale costs ``epsilon``; rounded down.

    ``sensitivity`` is how far, in l1, what gets the noise moves for a change of size 1.
    """
    check_positive("sensitivity", sensitivity)
    check_positive("scale of the noise", noise_scale)
    check_positive("epsilon", epsilon)
    return _float_at(Fraction(noise_scale) * Fraction(epsilon) / Fraction(sensitivity), upwards=False)


def composed_size(sizes: Sequence[float]) -> float:
    """Corollary 1: mechanisms that reach ``sizes`` at one epsilon reach 1 / sum(1 / size) together; rounded down.

    For two that is kappa phi / (kappa + phi): by Theorem 5 their costs per unit add up.
    """
    costs = sum((1 / Fraction(size) for size in _checked("size", sizes)), Fraction(0))
    return _float_at(1 / costs, upwards=False)


def _checked(name: str, values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise ConfigError("there is nothing to compose", where=name, got="no mechanism", wanted="at least one")
    for value in values:
        check_positive(name, value)
    return values


def _float_at(value: Fraction, *, upwards: bool) -> float:
    """The nearest float on the safe side."""
    near = float(value)
    if upwards:
        return near if Fraction(near) >= value else math.nextafter(near, math.inf)
    return near if Fraction(near) <= value else math.nextafter(near, 0.0)
