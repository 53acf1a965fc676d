"""What a recipe is: the slots of the training loop, filled, with the promise that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from twinproof.guarantee import Status
from twinproof.layers.models.registry import default_network
from twinproof.layers.models.with_noise import RedistributionKind
from twinproof.recipes.noise_layer import Variant
from twinproof.recipes.printed import Printed
from twinproof.recipes.regulariser import FIELD, RegulariserConfig
from twinproof.recipes.shares import Shares
from twinproof.training.augmentation import Augmentation
from twinproof.training.moved_copies import Movement
from twinproof.training.per_example.path import RecordLoss
from twinproof.training.reconstructing_view import ReconstructingView


class CopySettings(Protocol):
    """The settings that decide how copies of a record are made."""

    @property
    def copies(self) -> int:
        """Noisy copies beside the original."""

    @property
    def sigma(self) -> float:
        """Noise of the copies, or of the noise layer."""

    @property
    def originals(self) -> bool:
        """Whether the network sees the record itself beside its noisy copies."""


class RecordSettings(CopySettings, Protocol):
    """The settings that decide what is done with the copies of one record."""

    @property
    def regulariser(self) -> RegulariserConfig | None:
        """Weights of the recipe's own terms."""

    @property
    def sample_rate(self) -> float:
        """Share of the records in one step: its inverse is the number of steps in an epoch."""

    @property
    def variant(self) -> Variant:
        """Sound, or as the paper has it."""


@dataclass(frozen=True)
class Recipe:
    """A named, complete way to train. The loop knows no paper; this record is all that a paper adds.

    ``published`` holds what the paper's own variant changes of the ``defaults``; None where there is no such variant.
    ``loss_of`` makes the loss where it depends on settings; ``loss`` is then its part without them. ``ascent`` says how
    copies are moved against the network first, ``view`` through what the network is seen while it is trained, where its loss
    counts more than logits. ``fewest_copies`` is the least number of noisy copies that the recipe can do
    with, None where it makes none; ``needs_originals`` that it compares them with the record itself. ``network`` names the one
    that is used where none is asked for, by the input's shape, and ``published_network`` the one of the paper's own variant
    where that is another; ``starts_from_prior`` that it starts from learned weights where
    there are some for it. ``shares`` says what a noise layer's shares follow where records decide them.
    ``printed`` is how the paper's own variant makes its gradients where no plan can count them.

    Guarantees
        Whatever a recipe fills in sees one record at a time: a loss its copies' outputs and its label, an augmentation's rows
        are made one by one, an ascent is mapped over records. Nothing here is ever handed two records to compare.
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
    loss_of: Callable[[RecordSettings], RecordLoss] | None = None
    ascent: Callable[[RecordSettings], Movement] | None = None
    view: Callable[[nn.Module], ReconstructingView] | None = None
    fewest_copies: int | None = None
    needs_originals: bool = False
    network: Callable[[tuple[int, ...]], str] = default_network
    published_network: Callable[[tuple[int, ...]], str] | None = None
    starts_from_prior: bool = False
    shares: Shares = Shares.GRADIENT
    printed: Printed | None = None

    def record_loss(self, settings: RecordSettings) -> RecordLoss:
        """The loss of one record under these settings."""
        return self.loss if self.loss_of is None else self.loss_of(settings)

    def network_for(self, variant: Variant, shape: tuple[int, ...]) -> str:
        """The network of a run that asks for none."""
        published = self.published_network if variant is Variant.PUBLISHED else None
        return (published or self.network)(shape)

    @property
    def regulariser(self) -> Mapping[str, Any] | None:
        """The settings of a regulariser that the recipe reads, with its own values; None where it has none."""
        found: Mapping[str, Any] | None = self.defaults.get(FIELD)
        return found

    def counted(self, variant: Variant) -> bool:
        """Whether a plan counts the steps of this variant: a private recipe's, unless they are as its paper printed them."""
        return self.private and not (variant is Variant.PUBLISHED and self.printed is not None)

    @property
    def published_privacy(self) -> Status | None:
        """Status of privacy of the paper's own variant as its settings come; None where there is no such variant."""
        if self.published is None:
            return None
        if self.printed is not None:
            return Status.REFUTED
        unpaid = self.published.get("noise_layer", {}).get("redistribution") == RedistributionKind.TRAINING
        return Status.NONE if not self.private else Status.REFUTED if unpaid else Status.PUBLISHED

    @property
    def has_noise_layer(self) -> bool:
        """Whether the network draws noise of its own; the settings of that layer begin with the recipe's."""
        return "noise_layer" in self.defaults
