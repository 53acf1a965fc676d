"""What one noisy copy of an input adds to the sums of its classes: a vote, or scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from twinproof.certification.method import Statistic


class RowStatistic(ABC):
    """Turns a network's outputs into whole numbers that add up exactly, whatever the order, the batch or the device.

    ``resolution`` is the whole number that a class gets where it gets everything.

    Guarantees
        A row's numbers depend on that row's outputs alone, lie between 0 and ``resolution`` and add up to at most
        ``resolution`` over the classes. A row with a NaN counts for no class, which can only lower a radius.
    """

    resolution: ClassVar[int]

    @abstractmethod
    def empty(self, inputs: int, classes: int, device: torch.device) -> Tensor:
        """Sums of no rows: int64, one row for each input."""

    @abstractmethod
    def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
        """Adds rows of ``outputs`` (rows, classes) in place; ``owners`` says which input each one belongs to, and is lost."""

    @abstractmethod
    def counted(self, sums: Tensor, classes: int) -> Tensor:
        """The columns of ``sums`` that ``moments`` reads."""

    @abstractmethod
    def moments(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, classes) sums, and sums of squares."""


class Votes(RowStatistic):
    """1 for the class with the largest output: the mean is the probability that the network answers so."""

    resolution = 1

    def empty(self, inputs: int, classes: int, device: torch.device) -> Tensor:
        """One more column than classes: draws that voted for nobody."""
        return torch.zeros((inputs, classes + 1), dtype=torch.int64, device=device)

    def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
        """One number for each row, not one for each row and class: counting stays a small part of the work."""
        classes = outputs.shape[1]
        choice = torch.where(outputs.isnan().any(dim=1), classes, outputs.argmax(dim=1))
        place = owners.mul_(classes + 1).add_(choice)
        sums.view(-1).scatter_add_(0, place, torch.ones_like(place))

    def counted(self, sums: Tensor, classes: int) -> Tensor:
        """Without those who voted for nobody."""
        return sums[:, :classes]

    def moments(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """A vote is its own square."""
        return counted, counted


class Scores(RowStatistic):
    """The softmax of the outputs, floored to multiples of 2^-20: the mean is the expected score.

    Guarantees
        Floored scores add up to at most 1: in float64 the softmax of up to a billion classes adds up to less than 1 + 2^-20.
        The floor is part of the classifier, so that a certificate speaks of exactly these numbers.
    """

    resolution = 2**20

    def empty(self, inputs: int, classes: int, device: torch.device) -> Tensor:
        """The scores' columns, then those of their squares."""
        return torch.zeros((inputs, 2 * classes), dtype=torch.int64, device=device)

    def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
        """Each row's scores and their squares."""
        shares = torch.softmax(outputs.double(), dim=1)
        # Also what is infinite twice has no softmax.
        shares = torch.where(shares.isnan().any(dim=1, keepdim=True), 0.0, shares)
        units = (shares * self.resolution).floor().to(torch.int64)
        sums.index_add_(0, owners, torch.cat((units, units * units), dim=1))

    def counted(self, sums: Tensor, classes: int) -> Tensor:
        """All of them."""
        return sums

    def moments(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves."""
        classes = counted.shape[1] // 2
        return counted[:, :classes], counted[:, classes:]


VOTES = Votes()
_ALL: dict[str, RowStatistic] = {Statistic.VOTES: VOTES, Statistic.SCORES: Scores()}


def row_statistic(name: str) -> RowStatistic:
    """The statistic of that name (``Method.statistic``)."""
    return _ALL[name]
