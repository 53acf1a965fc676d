"""The closed choices of a noise layer: which law its numbers follow, and where it stands in the network."""

from __future__ import annotations

from enum import StrEnum


class Law(StrEnum):
    """The law of the standard noise: normal with variance 1, or Laplace with scale 1 (variance 2)."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"


class Place(StrEnum):
    """Where the noise is added: to the network's input, or to the output of its first linear or convolution layer."""

    INPUT = "input"
    FIRST_LAYER = "first-layer"
