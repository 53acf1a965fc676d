"""What a recipe is: the slots of the training loop, filled, with the promise that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from twinproof.extensions import permitted
from twinproof.guarantee import Status
from twinproof.layers.models.registry import default_network
from twinproof.layers.models.with_noise import RedistributionKind
from twinproof.recipes.regulariser import FIELD, RegulariserConfig
from twinproof.recipes.shares import Shares
from twinproof.recipes.variant import Variant, find_variant
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
    def variant(self) -> str:
        """``sound``, or a variant's name."""


@dataclass(frozen=True)
class Recipe:
    """A named, complete way to train. The loop knows no paper; this record is all that a paper adds.

    ``loss_of`` makes the loss where it depends on settings; ``loss`` is then its part without them. ``ascent`` says how
    copies are moved against the network first, ``view`` through what the network is seen while it is trained, where its loss
    counts more than logits. ``fewest_copies`` is the least number of noisy copies that the recipe can do
    with, None where it makes none; ``needs_originals`` that it compares them with the record itself. ``network`` names the one
    that is used where none is asked for, by the input's shape; ``starts_from_prior`` that it starts from learned weights where
    there are some for it. ``shares`` says what a noise layer's shares follow where records decide them.

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
    loss_of: Callable[[RecordSettings], RecordLoss] | None = None
    ascent: Callable[[RecordSettings], Movement] | None = None
    view: Callable[[nn.Module], ReconstructingView] | None = None
    fewest_copies: int | None = None
    needs_originals: bool = False
    network: Callable[[tuple[int, ...]], str] = default_network
    starts_from_prior: bool = False
    shares: Shares = Shares.GRADIENT

    def variant(self, name: str) -> Variant | None:
        """What the variant of that name changes; None for ``sound``."""
        return find_variant(self.name, name)

    def record_loss(self, settings: RecordSettings) -> RecordLoss:
        """The loss of one record under these settings."""
        variant = self.variant(settings.variant)
        if variant is not None and variant.loss is not None:
            return variant.loss
        return self.loss if self.loss_of is None else self.loss_of(settings)

    def network_for(self, variant: str, shape: tuple[int, ...]) -> str:
        """The network of a run that asks for none."""
        other = self.variant(variant)
        return (self.network if other is None or other.default_network is None else other.default_network)(shape)

    @property
    def regulariser(self) -> Mapping[str, Any] | None:
        """The settings of a regulariser that the recipe reads, with its own values; None where it has none."""
        found: Mapping[str, Any] | None = self.defaults.get(FIELD)
        return found

    def counted(self, variant: str) -> bool:
        """Whether a plan counts the steps of this variant: a private recipe's, unless the variant makes its own gradients."""
        other = self.variant(variant)
        return self.private and (other is None or other.source is None)

    def variant_status(self, name: str) -> Status:
        """What the variant of that name says about privacy, with the settings it comes with."""
        variant = self.variant(name)
        if variant is None or not self.private:
            return self.privacy_status if self.private else Status.NONE
        shares = {**self.defaults.get("noise_layer", {}), **variant.defaults.get("noise_layer", {})}.get("redistribution")
        unpaid = variant.unpaid_shares and shares == RedistributionKind.TRAINING
        return Status.REFUTED if unpaid or variant.refutation else permitted(variant.status)

    @property
    def has_noise_layer(self) -> bool:
        """Whether the network draws noise of its own; the settings of that layer begin with the recipe's."""
        return "noise_layer" in self.defaults
