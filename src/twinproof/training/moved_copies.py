"""Paths that move a record's copies before its gradient is taken, and how a recipe says so."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from torch import Tensor, nn

from twinproof.randomness import Key
from twinproof.training.gradient_source import GradientSource
from twinproof.training.per_example.path import PerExamplePath, RecordGradients


class MovedCopies(PerExamplePath):
    """First moves copies of each record against the network, then lets ``inner`` take the gradients where they are.

    Why the movement belongs to the path and not to the making of copies: it needs the network's present weights, as the
    gradient does; it takes memory that must be counted when passes are cut; and in a path it is mapped over records.
    """

    model: nn.Module
    inner: PerExamplePath

    @abstractmethod
    def begin(self, step: int, key: Key | None = None) -> None:
        """Told before each training step; ``key`` is the run's, for what is drawn once for a step."""

    @abstractmethod
    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The copies at which gradients are taken, from those that the augmentation made: (m, copies, *shape)."""

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """See :class:`PerExamplePath`."""
        return self.inner.gradients(self.moved(inputs, labels), labels)


class Movement(Protocol):
    """The settings of such a path; ``on`` makes it."""

    def on(self, model: nn.Module, inner: PerExamplePath, *, originals: bool) -> MovedCopies:
        """The path that moves copies against ``model``; without ``originals`` the record itself is not handed on."""


def moved_copies_in(path: PerExamplePath) -> MovedCopies | None:
    """The path that moves copies, where one does: the path itself, or one that it is built on."""
    found: object = path
    while found is not None and not isinstance(found, MovedCopies):
        found = getattr(found, "inner", None)
    return found


class WarmedUp(GradientSource):
    """Gradients of a source whose path moves copies: tells the path each step before it is taken."""

    def __init__(self, source: GradientSource, path: MovedCopies, key: Key | None = None) -> None:
        self._source = source
        self.pass_size = source.pass_size
        self._path = path
        self._key = key

    def gradient(self, step: int) -> dict[str, Tensor]:
        """See :class:`GradientSource`."""
        self._path.begin(step, self._key)
        found = self._source.gradient(step)
        self.last = self._source.last
        return found
