"""What a recipe is: what it fills into the training loop, and the guarantee that follows.

docs/recipes.md compares the defaults with the values of the papers and of their programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field
from torch import nn, optim

from twinproof.errors import ConfigError
from twinproof.extensions import PUBLISHED as PUBLISHED
from twinproof.extensions import Group, find, names, permitted, where_to_get
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.networks import default_network
from twinproof.layers.noise_placement import RedistributionKind
from twinproof.training.copies import Movement
from twinproof.training.interval import IntervalView
from twinproof.training.passes import Augmentation
from twinproof.training.per_example.paths import RecordLoss
from twinproof.training.sources import GradientSource, PlainGradients
from twinproof.training.stobatch import ReconstructingView

FIELD = "regulariser"


class RegulariserConfig(BaseModel):
    """Settings of a regulariser or of an attack on the copies; a recipe reads some of them, the others stay unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="gamma or lambda: weight of the term")
    eta: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="weight of the mean prediction's entropy")
    beta: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="MACER: inverse temperature of softmax")
    macer_gamma: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="MACER: margins above it do not count"
    )
    radius: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="attack on the copies: its l2 size, in input units"
    )
    attack_steps: int | None = Field(default=None, ge=1, le=100, description="steps of the attack on the copies")
    warm_up_epochs: int | None = Field(default=None, ge=0, description="epochs in which that attack grows to its full radius")
    xi: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="StoBatch: weight of adversarial copies")
    attack_size: float | None = Field(
        default=None, gt=0, le=1, description="StoBatch: largest linf attack on the copies, in input units"
    )
    attack_stride: float | None = Field(
        default=None, gt=0, le=100, description="StoBatch: length of an attack's step, times steps over size"
    )


def reading(regulariser: RegulariserConfig | None, name: str) -> float:
    """The setting ``name`` of a recipe that reads it."""
    found: float | None = None if regulariser is None else getattr(regulariser, name)
    if found is None:
        raise _missing([name])
    return found


def check_regulariser(recipe: str, regulariser: RegulariserConfig | None, defaults: Mapping[str, Any] | None) -> None:
    """Refuses settings that the recipe does not read, and missing ones that it does; ``defaults`` names those it reads."""
    given = {} if regulariser is None else regulariser.model_dump(exclude_none=True)
    read = defaults or {}
    unread = {name: value for name, value in given.items() if name not in read}
    if unread:
        raise ConfigError(
            "this recipe does not read every setting of the regulariser",
            where=", ".join(f"{FIELD}.{name}" for name in unread),
            got=f"{', '.join(f'{name} = {value}' for name, value in unread.items())}, with {recipe}",
            wanted=", ".join(read) or "no regulariser",
            fix="leave them out, or choose another recipe",
        )
    if missing := [name for name in read if name not in given]:
        raise _missing(missing)


def _missing(names: Iterable[str]) -> ConfigError:
    return ConfigError(
        "a setting that the recipe reads is missing",
        where=", ".join(f"{FIELD}.{name}" for name in names),
        got="nothing",
        wanted="a number",
        fix="leave the setting out to use the recipe's default",
    )


class Shares(StrEnum):
    """How a record's part in the shares is measured, and which outputs get more noise for it."""

    GRADIENT = "gradient"  # |dL/dh|^beta: more noise where the loss is more sensitive (HGM, Phan et al. 2019)
    RELEVANCE = "relevance"  # |relevance of h|^beta: less noise where it is more relevant (AdLM, Phan et al. 2017)


class CopySettings(Protocol):
    """The settings that decide how copies of a record are made: ``copies`` noisy ones of deviation ``sigma`` (or, in a network
    with a noise layer, of that layer's), beside the record itself unless ``originals`` is false.
    """

    @property
    def copies(self) -> int: ...

    @property
    def sigma(self) -> float: ...

    @property
    def originals(self) -> bool: ...


class RecordSettings(CopySettings, Protocol):
    """The settings that decide what is done with the copies of one record; 1 / ``sample_rate`` steps make an epoch."""

    @property
    def regulariser(self) -> RegulariserConfig | None: ...

    @property
    def sample_rate(self) -> float: ...

    @property
    def steps(self) -> int: ...

    @property
    def variant(self) -> str: ...


SOUND = "sound"


class Holds(Protocol):
    """What is done to a network before the first step and after each one."""

    def apply(self, network: nn.Module) -> None:
        """Changes the network in place."""


@dataclass(frozen=True)
class OwnSteps:
    """Steps of a variant's own: ``source`` makes their gradients from plain ones, ``check`` refuses a network that has none."""

    source: Callable[[Any, PlainGradients, nn.Module, Key], GradientSource]
    check: Callable[[nn.Module], object]


@dataclass(frozen=True)
class Variant:
    """What a variant changes of its recipe.

    ``status`` is what it claims about privacy, and ``refutation`` why that is false. ``defaults`` are put over the recipe's.
    ``section`` is a settings section of its own, by name. ``deviations`` replaces the noise of a mechanism
    at sensitivity 1, by (epsilon, delta). ``unpaid_shares``: a noise layer's shares are taken from the training records as they
    are.

    ``steps`` are the variant's own, where no plan can count them. Such a variant promises no privacy: its ledger spends nothing
    and no epsilon is printed.

    ``network`` adds modules to the bare network, when it is made and when it is opened; ``prepare`` fills them in before the
    first step; ``constraint`` holds them afterwards.
    """

    recipe: str
    name: str
    status: Status
    refutation: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    section: tuple[str, type[BaseModel]] | None = None
    deviations: Mapping[str, Callable[[float, float], float]] = field(default_factory=dict)
    unpaid_shares: bool = False
    loss: RecordLoss | None = None
    steps: OwnSteps | None = None
    optimizer: Callable[[nn.Module, float], optim.Optimizer] | None = None
    default_network: Callable[[tuple[int, ...]], str] | None = None
    network: Callable[[nn.Module, tuple[int, ...]], nn.Module] | None = None
    prepare: Callable[[nn.Module, Any], None] | None = None
    constraint: Callable[[], Holds] | None = None


def variants_of(recipe: str) -> list[str]:
    """The names of the recipe's variants that are installed; nothing is loaded."""
    known = (name.rpartition(".") for name in names(Group.VARIANTS))
    return [SOUND, *(name for of, _, name in known if of == recipe)]


def find_variant(recipe: str, name: str) -> Variant:
    """The variant of that name; ``sound`` changes nothing, and its ``status`` is not asked: that is the recipe's."""
    if name == SOUND:
        return Variant(recipe, SOUND, Status.PROVEN)
    found: Variant | None = find(Group.VARIANTS, f"{recipe}.{name}", Variant)
    if found is None:
        others = [of for of, _, other in (known.rpartition(".") for known in names(Group.VARIANTS)) if other == name]
        raise ConfigError(
            f"this recipe has no {name} variant" if others else f"there is no {name} variant",
            where="variant",
            got=f"{name!r}, with {recipe}",
            wanted=" or ".join(others) if others else " or ".join(variants_of(recipe)),
            fix=where_to_get(name) or "leave variant out",
        )
    return found


def variants_with_section(section: str | None = None) -> list[Variant]:
    """Every installed variant that has a settings section, of this name where one is given."""
    every = (find(Group.VARIANTS, name, Variant) for name in names(Group.VARIANTS))
    with_one = [found for found in every if found is not None and found.section is not None]
    return [found for found in with_one if section is None or (found.section or ("",))[0] == section]


@dataclass(frozen=True)
class NoisyCopies:
    """The noisy copies that a recipe can do with: at least so many, and whether it compares them with the record itself."""

    fewest: int
    need_originals: bool = False


@dataclass(frozen=True)
class Start:
    """What a run begins with where its settings leave it open.

    The ``network`` by the input's shape; its weights by ``initialise``, where torch's are not meant, or with ``from_prior``
    learned ones where there are some, those nearest to ``prior_level``; a batch by ``batches_per_epoch``.
    """

    network: Callable[[tuple[int, ...]], str] = default_network
    from_prior: bool = False
    initialise: Callable[[nn.Module], None] | None = None
    prior_level: Callable[[CopySettings], float] = lambda settings: settings.sigma
    batches_per_epoch: float = 30


@dataclass(frozen=True)
class Recipe:
    """A named, complete way to train. The loop knows no paper; this record is all that a paper adds.

    An entry of ``defaults`` that is a model is a settings section of the recipe's own.

    ``loss_of`` makes the loss where it depends on settings; ``loss`` is then its part without them. ``ascent`` says how copies
    are moved against the network first, or what else is set before each step; ``view`` through what the network is seen while
    it is trained, where its loss counts more than logits. ``noisy`` says which noisy copies it needs, None where it makes none,
    and ``start`` what it begins with. ``shares`` says what a noise layer's shares follow where records decide them.

    Guarantees
        Everything that a recipe fills in sees one record at a time: a loss gets the outputs of its copies and its label, an
        augmentation makes rows one by one, an ascent is mapped over records.
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
    view: Callable[[nn.Module], ReconstructingView | IntervalView] | None = None
    noisy: NoisyCopies | None = None
    start: Start = Start()
    shares: Shares = Shares.GRADIENT

    @property
    def plain_defaults(self) -> dict[str, Any]:
        """The defaults as plain values."""
        return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in self.defaults.items()}

    @property
    def section(self) -> tuple[str, type[BaseModel]] | None:
        """The settings section of its own, by name."""
        return next(((name, type(value)) for name, value in self.defaults.items() if isinstance(value, BaseModel)), None)

    def variant(self, name: str) -> Variant:
        """What the variant of that name changes."""
        return find_variant(self.name, name)

    def record_loss(self, settings: RecordSettings) -> RecordLoss:
        """The loss of one record under these settings."""
        other = self.variant(settings.variant).loss
        return other or (self.loss if self.loss_of is None else self.loss_of(settings))

    def network_for(self, variant: str, shape: tuple[int, ...]) -> str:
        """The network of a run that asks for none."""
        return (self.variant(variant).default_network or self.start.network)(shape)

    @property
    def regulariser(self) -> Mapping[str, Any] | None:
        """The settings of a regulariser that the recipe reads, with its own values; None where it has none."""
        found: Mapping[str, Any] | None = self.defaults.get(FIELD)
        return found

    def counted(self, variant: str) -> bool:
        """Whether a plan counts the steps of this variant: a private recipe's, unless the variant makes its own gradients."""
        return self.private and self.variant(variant).steps is None

    def variant_status(self, name: str) -> Status:
        """What the variant of that name says about privacy, with the settings it comes with."""
        if name == SOUND or not self.private:
            return self.privacy_status if self.private else Status.NONE
        variant = self.variant(name)
        shares = {**self.defaults.get("noise_layer", {}), **variant.defaults.get("noise_layer", {})}.get("redistribution")
        unpaid = variant.unpaid_shares and shares == RedistributionKind.TRAINING
        return Status.REFUTED if unpaid or variant.refutation else permitted(variant.status)

    @property
    def has_noise_layer(self) -> bool:
        """Whether the network draws noise of its own; the settings of that layer begin with the recipe's."""
        return "noise_layer" in self.defaults
