"""What a recipe is: the slots of the training loop, filled, with the promise that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from twinproof.guarantee import Status
from twinproof.training.augmentation import Augmentation
from twinproof.training.per_example.path import RecordLoss


class CopySettings(Protocol):
    """The settings that decide how copies of a record are made."""

    @property
    def copies(self) -> int:
        """Noisy copies beside the original."""

    @property
    def sigma(self) -> float:
        """Noise of the copies, or of the noise layer."""


@dataclass(frozen=True)
class Recipe:
    """A named, complete way to train. The loop knows no paper; this record is all that a paper adds.

    ``published`` holds what the paper's own variant changes of the ``defaults``; None where there is no such variant.
    """

    name: str
    summary: str
    paper: str
    private: bool
    privacy_status: Status
    robustness: str
    loss: RecordLoss
    augmentation: Callable[[CopySettings], Augmentation]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] | None = None

    @property
    def has_noise_layer(self) -> bool:
        """Whether the network draws noise of its own; the settings of that layer begin with the recipe's."""
        return "noise_layer" in self.defaults
