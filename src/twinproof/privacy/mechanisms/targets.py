"""What a privacy target may be: the checks that all mechanisms share."""

from __future__ import annotations

import math

from twinproof.errors import ConfigError
from twinproof.privacy.accounting import check_delta


def check_positive(name: str, value: float) -> None:
    """Refuses what is not a finite number above 0, naming it."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"the {name} cannot be used", where=name, got=value, wanted="a finite number above 0")


def check_profile_epsilon(epsilon: float) -> None:
    """Refuses an epsilon at which no profile is defined; 0 is one: the profile there is the total variation."""
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ConfigError("the epsilon cannot be used", where="epsilon", got=epsilon, wanted="a finite number, 0 or above")


def check_target(epsilon: float, delta: float, sensitivity: float) -> None:
    """Refuses a target that a Gaussian mechanism cannot be calibrated for: every noise has some delta above 0."""
    check_delta(delta)
    check_positive("epsilon", epsilon)
    check_positive("sensitivity", sensitivity)
