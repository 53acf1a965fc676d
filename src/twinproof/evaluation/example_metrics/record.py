"""One example's metrics as a record, and all of a test set's in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import ConfigError, DataError

Values = NDArray[np.float64]

METRICS = (
    "gradient_norm",
    "hessian_norm",
    "hessian_largest",
    "lipschitz_logits",
    "lipschitz_logits_loop",
    "lipschitz_logits_code",
    "lipschitz_penultimate",
    "lipschitz_penultimate_loop",
    "lipschitz_penultimate_code",
)
"""The numbers of an ``ExampleMetrics`` that say something about the network."""


@dataclass(frozen=True)
class ExampleMetrics:
    """What was measured at one test input, in units of the input ([0, 1]) and of the natural logarithm (loss).

    ``hessian_norm`` is the largest absolute eigenvalue, ``hessian_largest`` the largest one with its sign; an eigenvalue lies
    within each residual of its value, and ``hessian_converged`` says whether the residuals met the tolerance. Lipschitz
    constants are those of our search, of the published ``loop`` climbing as its papers say, and of its ``code``, which
    descends; None where the network's penultimate layer is unknown.
    """

    index: int
    label: int
    gradient_norm: float
    hessian_norm: float
    hessian_largest: float
    hessian_residual: float
    hessian_largest_residual: float
    hessian_converged: bool
    lipschitz_logits: float
    lipschitz_logits_loop: float
    lipschitz_logits_code: float
    lipschitz_penultimate: float | None = None
    lipschitz_penultimate_loop: float | None = None
    lipschitz_penultimate_code: float | None = None

    def as_dict(self) -> dict[str, float | int | bool | None]:
        """Plain JSON values."""
        return asdict(self)


def measured_metrics(examples: Sequence[ExampleMetrics]) -> tuple[str, ...]:
    """Those of ``METRICS`` that every example has."""
    return tuple(name for name in METRICS if all(getattr(example, name) is not None for example in examples))


def metric_values(examples: Sequence[ExampleMetrics], metric: str) -> Values:
    """One metric of all examples, in their order."""
    if metric not in METRICS:
        raise ConfigError("unknown metric", where="metric", got=metric, wanted=", ".join(METRICS))
    if not examples:
        raise DataError("there are no examples", where=metric, got=0, wanted="at least one")
    values = [getattr(example, metric) for example in examples]
    if None in values:
        raise DataError(
            "this metric was not measured",
            where=metric,
            got=f"no number for example {examples[values.index(None)].index}",
            wanted="a number for every example",
            fix="measure a Sequential that ends with a Linear layer",
        )
    return np.array(values, dtype=np.float64)
