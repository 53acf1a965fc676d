"""How copies of one record are made before its gradient is taken; all copies are averaged before clipping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.errors import ConfigError


class Augmentation(ABC):
    """Makes the copies of each record from that record and fresh noise, never from another record."""

    @property
    @abstractmethod
    def copies(self) -> int:
        """How many copies of each record the network sees."""

    @abstractmethod
    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """(records, *shape) -> (records, copies, *shape)."""


@dataclass(frozen=True)
class OriginalOnly(Augmentation):
    """The record as it is."""

    @property
    def copies(self) -> int:
        """One."""
        return 1

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Adds the axis of copies."""
        return inputs.unsqueeze(1)


@dataclass(frozen=True)
class Repeats(Augmentation):
    """The record ``times`` times as it is: in a network with a noise layer every copy meets a draw of its own."""

    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ConfigError("a record needs at least one copy", where="copies", got=self.times, wanted="1 or more")

    @property
    def copies(self) -> int:
        """All of them."""
        return self.times

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Repeats each record in memory of its own, so that a layer may work in place."""
        return inputs.unsqueeze(1).expand(-1, self.times, *inputs.shape[1:]).contiguous()


@dataclass(frozen=True)
class GaussianCopies(Augmentation):
    """The record and ``noisy`` copies of it with N(0, sigma^2) noise on every coordinate, not clipped back to the range.

    Without ``original`` the noisy copies stand in its place: the network never sees the record itself.
    """

    noisy: int
    sigma: float
    original: bool = True

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ConfigError("a record would never be seen", where="copies", got=self.noisy, wanted="1 or more noisy copies")

    @property
    def copies(self) -> int:
        """The original, where it is kept, and its noisy copies."""
        return self.noisy + self.original

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draws fresh noise for every record and copy; the original comes first."""
        shape = (inputs.shape[0], self.noisy, *inputs.shape[1:])
        noise = torch.randn(shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
        original = inputs.unsqueeze(1)
        noisy = original + self.sigma * noise
        return torch.cat([original, noisy], dim=1) if self.original else noisy
