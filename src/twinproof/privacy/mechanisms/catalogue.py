"""All calibrated mechanisms by name: a closed set, since a promise depends on the choice."""

from __future__ import annotations

from collections.abc import Mapping

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.analytic_gaussian import AnalyticGaussian
from twinproof.privacy.mechanisms.classic_gaussian import ClassicGaussian
from twinproof.privacy.mechanisms.extended_gaussian import ExtendedGaussian
from twinproof.privacy.mechanisms.gaussian import GaussianNoise
from twinproof.privacy.mechanisms.heterogeneous_analytic import HeterogeneousAnalytic
from twinproof.privacy.mechanisms.heterogeneous_gaussian import HeterogeneousGaussian
from twinproof.privacy.mechanisms.laplace import Laplace
from twinproof.privacy.mechanisms.redistribution import Redistribution

LAPLACE = "laplace"
PLAIN: Mapping[str, type[ClassicGaussian] | type[ExtendedGaussian] | type[AnalyticGaussian]] = {
    "classic": ClassicGaussian,
    "extended": ExtendedGaussian,
    "analytic": AnalyticGaussian,
}
HETEROGENEOUS: Mapping[str, type[HeterogeneousGaussian] | type[HeterogeneousAnalytic]] = {
    "heterogeneous": HeterogeneousGaussian,
    "heterogeneous-analytic": HeterogeneousAnalytic,
}
NAMES = (*PLAIN, *HETEROGENEOUS, LAPLACE)


def calibrate(
    name: str, epsilon: float, delta: float, sensitivity: float = 1.0, redistribution: Redistribution | None = None
) -> GaussianNoise | Laplace:
    """The mechanism of that name for a target; a heterogeneous one without ``redistribution`` has a single output.

    Guarantees
        ``result.delta_at(epsilon) <= delta``.
    """
    if name in HETEROGENEOUS:
        redistribution = redistribution or Redistribution.uniform(1)
        return HETEROGENEOUS[name].for_target(epsilon, delta, sensitivity, redistribution=redistribution)
    if redistribution is not None:
        raise ConfigError(
            "this mechanism has no redistribution vector",
            where="r",
            got=name,
            wanted=" or ".join(HETEROGENEOUS),
            fix="leave r out",
        )
    if name == LAPLACE:
        return Laplace.for_target(epsilon, delta, sensitivity)
    if name not in PLAIN:
        raise ConfigError("there is no such mechanism", where="mechanism", got=name, wanted=", ".join(NAMES))
    return PLAIN[name].for_target(epsilon, delta, sensitivity)
