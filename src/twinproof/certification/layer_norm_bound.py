"""How far the layer that gets the noise moves when the input moves: the norm that every radius is divided by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from twinproof.certification.short_numbers import few_digits_above
from twinproof.layers.noise import Law
from twinproof.privacy.sensitivity.bound import Norm
from twinproof.privacy.sensitivity.operator_norm import operator_norm
from twinproof.privacy.sensitivity.paper_bounds import paper_reshaped_kernel, paper_row_norm, paper_single_feature_map

# The norm in which each law's noise hides a shift.
TARGETS = {Law.GAUSSIAN: Norm.L2, Law.LAPLACE: Norm.L1}


@dataclass(frozen=True)
class NormBound:
    """A bound on an operator norm, and where it comes from."""

    value: float
    method: str


def identity_norm(law: Law, norm: str, dimension: int) -> NormBound:
    """The norm of the identity on ``dimension`` coordinates, from ``norm`` to the law's own; rounded up."""
    powers = (
        {Norm.L1: 0.0, Norm.L2: 0.0, Norm.LINF: 0.5} if law is Law.GAUSSIAN else {Norm.L1: 0.0, Norm.L2: 0.5, Norm.LINF: 1.0}
    )
    power = powers[Norm(norm)]
    value = math.nextafter(math.sqrt(dimension), math.inf) if power == 0.5 else float(dimension) ** power
    return NormBound(value, "identity")


def layer_norm(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: NDArray[np.float64]) -> NormBound:
    """The norm of ``layer`` with its outputs divided by ``scale``: never below the truth (``operator_norm``); ten digits."""
    bound = operator_norm(layer, shape, source=norm, target=TARGETS[law], scale=scale)
    return NormBound(few_digits_above(bound.value), bound.method)


def papers_norm(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: NDArray[np.float64]) -> NormBound:
    """What the papers put in its place, where they have something of their own: for bounds that are published, not proven."""
    convolution = not isinstance(layer, nn.Linear)
    if law is Law.GAUSSIAN and norm == Norm.LINF and convolution:
        return NormBound(paper_single_feature_map(layer, shape, scale), "paper: single feature map")
    if law is Law.GAUSSIAN and norm == Norm.LINF:
        return NormBound(paper_row_norm(layer, shape, scale), "paper: largest row")
    if law is Law.GAUSSIAN and norm == Norm.L2 and convolution and bool((scale == 1).all()):
        return NormBound(paper_reshaped_kernel(layer), "paper: reshaped kernel")
    return layer_norm(layer, shape, law, norm, scale)
