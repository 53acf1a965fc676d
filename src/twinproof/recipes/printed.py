"""A paper's own variant whose steps no plan can count: how its gradients are made, and why its promise of privacy is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from twinproof.randomness import Key
from twinproof.recipes.regulariser import RegulariserConfig
from twinproof.recipes.trainers import TrainersConfig
from twinproof.training.gradient_source import GradientSource, PlainGradients


class PrintedSettings(Protocol):
    """The settings that a paper's own mechanism reads."""

    @property
    def epsilon(self) -> float | None:
        """What the paper would claim."""

    @property
    def batch_size(self) -> int:
        """Expected records of a step."""

    @property
    def records(self) -> int:
        """Declared number of training records."""

    @property
    def regulariser(self) -> RegulariserConfig | None:
        """Weights of the recipe's own terms."""

    @property
    def trainers(self) -> TrainersConfig | None:
        """Local trainers, where there are any."""


@dataclass(frozen=True)
class Printed:
    """``source`` makes a step's gradients of plain ones; ``refutation`` says why they do not keep what the paper claims.

    ``check`` refuses a network that they cannot be made of. The weights are moved by Adam, as the authors did, instead of
    SGD. ``local_trainers``: several of them may share out the batches.

    Guarantees
        A run of such a variant has no privacy block, nothing in its ledger to spend, and the status ``refuted``: no epsilon
        can be read anywhere but in its settings, where it is what was asked for.
    """

    source: Callable[[PrintedSettings, PlainGradients, nn.Module, Key], GradientSource]
    refutation: str
    check: Callable[[nn.Module], object]
    local_trainers: bool = False
