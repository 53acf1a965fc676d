"""Small gradients of a GPU put together: a dozen biases cost as many kernels as a dozen convolutions, and almost no work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient

# Entries of a gradient that is worth copying to save the kernels it would need by itself.
_SMALL = 1024


@dataclass(frozen=True, eq=False)
class Group:
    """Gradients of one parameter, or of several small ones side by side: ``names`` in their order, with their ``shapes``."""

    gradient: PerExampleGradient
    names: Sequence[str]
    shapes: Sequence[torch.Size] = ()

    def parts(self, total: Tensor) -> dict[str, Tensor]:
        """What belongs to each parameter of a sum over records."""
        if not self.shapes:
            return {self.names[0]: total}
        pieces = torch.split(total, [math.prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}


def grouped(by_name: Mapping[str, PerExampleGradient]) -> list[Group]:
    """Every parameter by itself; on a GPU the small ones that are formed share one group."""
    small = {
        name: value.values for name, value in by_name.items() if isinstance(value, Instantiated) and _is_small(value.values)
    }
    if len(small) < 2:
        return [Group(value, [name]) for name, value in by_name.items()]
    together = Instantiated(torch.cat([values.flatten(1) for values in small.values()], dim=1))
    large = [Group(value, [name]) for name, value in by_name.items() if name not in small]
    return [*large, Group(together, list(small), [values.shape[1:] for values in small.values()])]


def _is_small(values: Tensor) -> bool:
    return values.is_cuda and math.prod(values.shape[1:]) <= _SMALL
