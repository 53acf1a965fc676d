"""The first-order reconstruction objective of one auto-encoder step, released once with Laplace noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinproof import checks
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.discrete_laplace import LARGEST_SUM, GridLaplace
from twinproof.privacy.functional import LEVELS, FeatureBall, ReconstructionPolynomial, reconstruction_levels_sensitivity
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.mechanisms import laplace_scale

RECONSTRUCTION = "functional mechanism: reconstruction"
_LARGEST_INPUT = 16.0


@dataclass(frozen=True)
class ReconstructionPlan:
    """How the coefficients (1/2 - x_j) h_b become private: inputs cut to [low, high], hidden units to their ball."""

    inputs: int
    hidden: FeatureBall
    epsilon: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        checks.positive(epsilon=self.epsilon)
        if self.inputs < 1 or not -_LARGEST_INPUT <= self.low < self.high <= _LARGEST_INPUT:
            got = f"{self.inputs} inputs in [{self.low}, {self.high}]"
            wanted = f"at least one, low below high, within +-{_LARGEST_INPUT:g}"
            raise ConfigError("the inputs have no usable bounds", where="inputs", got=got, wanted=wanted)
        _ = self.coefficients  # noise that does not fit the grid is refused before anything is spent

    @property
    def levels(self) -> tuple[int, int]:
        """The bounds of the inputs in levels, 2^15 to one unit."""
        return math.ceil(self.low * LEVELS), math.floor(self.high * LEVELS)

    @property
    def coefficients(self) -> GridLaplace:
        """The mechanism for all coefficients together."""
        sensitivity = reconstruction_levels_sensitivity(self.inputs, self.hidden, *self.levels)
        return GridLaplace(sensitivity, self.inputs * self.hidden.features, laplace_scale(self.epsilon))

    @property
    def event(self) -> LaplaceEvent:
        """What the accountants count."""
        return self.coefficients.event


def release_reconstruction(
    inputs: Tensor, hidden: Tensor, plan: ReconstructionPlan, *, key: Key, ledger: Ledger
) -> ReconstructionPolynomial:
    """The noisy objective, up to its constant, for inputs (records, d) and hidden units (records, beta).

    Hidden units must be a function of the record itself and of public or already private parameters. The objective is linear
    in theta and has no minimum: add a public penalty to minimise it.

    Guarantees
        (``plan.epsilon``, 0)-private for one record more or less, whatever the records hold, for this one release: another
        theta makes other hidden units, and their coefficients are another release. In the ledger before a record is read.
    """
    if inputs.ndim != 2 or hidden.ndim != 2 or inputs.shape != (len(hidden), plan.inputs):
        got = f"{tuple(inputs.shape)} and {tuple(hidden.shape)}"
        wanted = f"(records, {plan.inputs}) and (records, {plan.hidden.features})"
        raise DataError("inputs and hidden units do not fit the plan", where="inputs", got=got, wanted=wanted)
    most = LARGEST_SUM // (max(abs(LEVELS // 2 - level) for level in plan.levels) * LEVELS)
    if len(inputs) > most:
        raise DataError("there are too many records for exact sums", where="inputs", got=len(inputs), wanted=f"at most {most}")
    announced = plan.coefficients.announce(ledger, RECONSTRUCTION)
    values = torch.nan_to_num(inputs.detach().to(torch.float64) * LEVELS, nan=0.0).clamp(*plan.levels).trunc()
    shifted = LEVELS // 2 - values
    sums = (shifted.T @ plan.hidden.levels(hidden)).cpu().numpy().astype(np.int64)
    linear = announced.release(sums, key) * (plan.hidden.unit / LEVELS)
    return ReconstructionPolynomial(torch.zeros((), dtype=torch.float64), torch.from_numpy(linear))
