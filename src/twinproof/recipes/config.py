"""The settings of a training run: from files, flags and a recipe's defaults, and as a run's files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, create_model, model_serializer

from twinproof.checks import parse_settings
from twinproof.data.load import SOURCES, public_name
from twinproof.data.record import DataConfig
from twinproof.errors import ConfigError, RunError
from twinproof.layers.networks import Prior
from twinproof.layers.noise import Place
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof.privacy.plan import ClipRule
from twinproof.recipes.noise_layer import LARGEST_SIGMA, NoiseLayerConfig, check_noise_layer
from twinproof.recipes.recipe import (
    SOUND,
    Recipe,
    RegulariserConfig,
    Variant,
    check_regulariser,
    find_variant,
    variants_with_section,
)
from twinproof.recipes.registry import RECIPES, all_recipes, find_recipe, known_recipe
from twinproof.runs.run import FORMER_FRACTION
from twinproof.training.loop import Schedule
from twinproof.training.passes import Performance

# Below, the accountants overflow and nobody could recompute the epsilon of the run; above, the noise leaves its grid.
SMALLEST_NOISE, LARGEST_NOISE = 0.1, 1e5
LARGEST_RATE = 1e9


class PrivacySettings(BaseModel):
    """How much privacy, and how a gradient is clipped."""

    epsilon: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="target epsilon; sets the noise multiplier (3 if neither is set)"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="target delta, far below 1/records")
    noise_multiplier: float | None = Field(
        default=None,
        ge=SMALLEST_NOISE,
        le=LARGEST_NOISE,
        allow_inf_nan=False,
        description="deviation of the noise over clip_norm, instead of epsilon",
    )
    clip_norm: float = Field(default=0.1, gt=0, allow_inf_nan=False, description="bound on the norm of one record's gradient")
    clip_rule: ClipRule = Field(default=ClipRule.FLAT, description="how a gradient is scaled to at most clip_norm")
    clip_r: float = Field(default=0.01, ge=1e-30, le=1e30, description="the constant r of the psac rules")
    records: int | None = Field(
        default=None, ge=1, description="declared upper bound on the training records, public; their exact number if unset"
    )


class StepSettings(BaseModel):
    """The optimiser and its steps.

    The defaults of ``learning_rate`` and ``epochs`` were chosen by test accuracy on the embedded sets (digits, breast-cancer),
    which are public.
    """

    batch_size: int | None = Field(
        default=None, ge=1, description="expected records per step, and the constant divisor; chosen from records if unset"
    )
    epochs: float = Field(default=40, gt=0, allow_inf_nan=False, description="expected passes over the training records")
    steps: int | None = Field(default=None, ge=1, description="number of steps, instead of epochs")
    learning_rate: float = Field(
        default=2.0, ge=0, le=LARGEST_RATE, allow_inf_nan=False, description="learning rate of the first step"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of SGD")
    schedule: Schedule = Field(default=Schedule.CONSTANT, description="how the learning rate changes from step to step")
    averaging: float = Field(
        default=0, ge=0, lt=1, description="decay of the moving average over steps that becomes the weights; 0: the last step's"
    )


class CopiesSettings(BaseModel):
    """The noisy copies of a record that a step sees."""

    sigma: float | None = Field(
        default=None,
        gt=0,
        le=LARGEST_SIGMA,
        description="smoothing noise in input units ([0, 1]), 0.25 if unset; follows from a noise layer where there is one",
    )
    copies: int = Field(
        default=2, ge=0, le=64, description="noisy copies of each record beside the original; with a noise layer all copies"
    )
    originals: bool = Field(default=True, description="whether the original record is used beside its noisy copies")


class NetworkSettings(BaseModel):
    """The network and the weights it starts from."""

    model: str | None = Field(default=None, description="name of a built-in network; chosen from the input's shape if unset")
    width: int = Field(default=1, ge=1, le=64, description="factor on the network's hidden sizes")
    prior: Prior | None = Field(default=None, description="figures: start from weights learned from generated images")


class TrainConfig(PrivacySettings, StepSettings, CopiesSettings, NetworkSettings):
    """Every setting of a run. ``None`` means: decided from the others before training starts, and then written to run.json.

    Settings are flat, as users write them; the base classes group them by what they decide.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataConfig
    recipe: str = Field(description="how to train; see `twinproof recipes`")
    variant: str = Field(default=SOUND, description="sound, or published: by the formulas of the paper, with twinproof-papers")
    regulariser: RegulariserConfig | None = Field(default=None, description="the recipe's own loss terms and attack")
    noise_layer: NoiseLayerConfig | None = Field(default=None, description="noise inside the network")
    seed: int | None = Field(default=None, ge=0, description="makes the run repeatable and therefore not private")
    performance: Performance = Field(default=Performance(), description="speed and memory; changes no guarantee")

    @property
    def spec(self) -> Recipe:
        """The recipe that ``recipe`` names."""
        return find_recipe(self.recipe)

    @property
    def counted(self) -> bool:
        """Whether a privacy plan counts the steps of this run."""
        return self.spec.counted(self.variant)

    @model_serializer(mode="wrap")
    def _written(self, rest: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out a variant's own section where it is not used, so that the digests of older settings stay valid."""
        written: dict[str, Any] = rest(self)
        return {key: value for key, value in written.items() if value is not None or key in ResolvedConfig.model_fields}


class ResolvedConfig(TrainConfig):
    """Settings with nothing left open, as they are carried out and written to run.json."""

    batch_size: int
    records: int
    steps: int
    sigma: float
    model: str
    prior: Prior = Prior.NONE

    @property
    def sample_rate(self) -> float:
        """Probability with which a step takes each record."""
        return self.batch_size / self.records


Config = TypeVar("Config", bound=TrainConfig)


def with_section(schema: type[Config], recipe: object, variant: object) -> type[Config]:
    """The schema with the settings sections of recipe and variant, where they have any of their own."""
    for owner in (known_recipe(str(recipe)), find_variant(str(recipe), str(variant or SOUND))):
        if owner is not None and owner.section is not None:
            schema = _extended(schema, *owner.section, needed=isinstance(owner, Recipe))
    return schema


@cache
def _extended(schema: type[Config], name: str, section: type[BaseModel], *, needed: bool = False) -> type[Config]:
    """``needed``: it cannot be left open."""
    field: Any = (section if needed else section | None, Field(default=None, description=section.__doc__))
    return create_model(schema.__name__, __base__=schema, **{name: field})


def full_schema() -> type[TrainConfig]:
    """The schema with the sections of all recipes and installed variants, to list every setting."""
    schema = TrainConfig
    owners: list[Recipe | Variant] = [*all_recipes(), *variants_with_section()]
    for owner in owners:
        schema = schema if owner.section is None else _extended(schema, *owner.section)
    return schema


def parse_train_config(*layers: Mapping[str, Any]) -> TrainConfig:
    """Merges layers of settings over the defaults of the recipe they name; later layers win."""
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer)
    recipe = find_recipe(str(merged.get("recipe", "dpcert-gaussian")))
    defaults = _merge({"recipe": recipe.name}, recipe.plain_defaults)
    _merge(defaults, recipe.variant(str(merged.get("variant", SOUND))).defaults)
    schema = with_section(TrainConfig, recipe.name, merged.get("variant"))
    for name in [name for name in merged if name not in schema.model_fields]:
        _refuse_section(recipe.name, name, merged)
    config = parse_settings(schema, _merge(defaults, merged))
    check_settings(config)
    return config


def check_settings(config: TrainConfig) -> None:
    """Refuses settings that contradict each other or the recipe."""
    recipe = config.spec
    if config.epsilon is not None and config.noise_multiplier is not None:
        raise ConfigError(
            "the noise is set twice",
            where="epsilon, noise_multiplier",
            got=f"epsilon = {config.epsilon}, noise_multiplier = {config.noise_multiplier}",
            wanted="only one of them, because the other follows from it",
            fix="leave one out",
        )
    if config.clip_rule is not ClipRule.FLAT and not recipe.private:
        raise ConfigError(
            "this recipe clips nothing",
            where="clip_rule",
            got=f"{config.clip_rule}, with {recipe.name}",
            wanted="a private recipe, or clip_rule flat",
            fix="leave clip_rule out",
        )
    check_regulariser(recipe.name, config.regulariser, recipe.regulariser)
    _check_copies(config, recipe)
    _check_noise(config, recipe)


def _refuse_section(recipe: str, name: str, settings: dict[str, Any]) -> None:
    """Refuses the section of another recipe or variant by saying whose it is, before the schema asks what is missing in it."""
    owners = [other.name for other in all_recipes() if other.section is not None and other.section[0] == name]
    owners += [f"{owner.recipe} with variant {owner.name}" for owner in variants_with_section(name)]
    if owners and settings[name] is None:
        del settings[name]
        return
    if not owners:
        return
    raise ConfigError(
        f"the steps of {recipe} (variant {settings.get('variant', SOUND)}) know no {name}",
        where=name,
        got=_in_full(name, settings[name]),
        wanted=" or ".join(owners),
        fix=f"leave {name} out",
    )


def _in_full(name: str, given: object) -> str:
    """A section's settings by their full names."""
    if isinstance(given, Mapping) and given:
        return ", ".join(f"{name}.{key} = {value}" for key, value in given.items())
    return f"{name} = {given}"


def _check_copies(config: TrainConfig, recipe: Recipe) -> None:
    if not config.originals and (recipe.noisy is None or recipe.noisy.need_originals):
        able = [other.name for other in RECIPES.values() if other.noisy is not None and not other.noisy.need_originals]
        raise ConfigError(
            "this recipe cannot do without the original records",
            where="originals",
            got=f"false, with {recipe.name}",
            wanted="true, or one of " + ", ".join(able),
            fix="leave originals out",
        )
    fewest = max(0 if recipe.noisy is None else recipe.noisy.fewest, 0 if config.originals else 1)
    if config.copies < fewest:
        raise ConfigError(
            "there are too few noisy copies for this recipe",
            where="copies",
            got=f"{config.copies}, with {recipe.name}{'' if config.originals else ' without originals'}",
            wanted=f"at least {fewest}",
        )


def _check_noise(config: TrainConfig, recipe: Recipe) -> None:
    if (config.noise_layer is None) == recipe.has_noise_layer:
        raise ConfigError(
            "the recipe and its noise layer disagree",
            where="noise_layer",
            got=f"{'no' if config.noise_layer is None else 'a'} noise layer, with {recipe.name}",
            wanted="a noise layer with " + ", ".join(other.name for other in RECIPES.values() if other.has_noise_layer),
            fix="choose another recipe, or leave noise_layer out",
        )
    if config.noise_layer is None:
        return
    if config.sigma is not None:
        raise ConfigError(
            "sigma is set twice",
            where="sigma",
            got=f"sigma = {config.sigma}, and a noise layer",
            wanted="no sigma, because it follows from attack_bound, epsilon_r and delta_r",
            fix="leave sigma out and set noise_layer.attack_bound",
        )
    if (recipe.view is not None) != (config.noise_layer.place == BOTH_PLACES):
        raise ConfigError(
            "this recipe needs both of its noises" if recipe.view is not None else "this recipe has one noise",
            where="noise_layer.place",
            got=f"{config.noise_layer.place}, with {recipe.name}",
            wanted=BOTH_PLACES if recipe.view is not None else " or ".join(Place),
            fix="leave place out, or choose another recipe",
        )
    if config.copies < 1:
        raise ConfigError(
            "the records would never be seen", where="copies", got=config.copies, wanted="at least 1 with a noise layer"
        )
    if config.averaging:
        raise ConfigError(
            "averaged weights do not fit the noise layer",
            where="averaging",
            got=f"averaging = {config.averaging}, and a noise layer",
            wanted="0 with a noise layer, whose noise is sized for the weights of the step and not for their average",
            fix="leave averaging out",
        )
    check_noise_layer(config.noise_layer, recipe.variant(config.variant).deviations)


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            # A copy all the way down: a later layer must not be merged into what the caller gave.
            into[key] = _merge({}, value) if isinstance(value, Mapping) else value
    return into


_PUBLIC_DATA = "public_data"  # the one setting outside ``data`` that may be a path


def _last_part(path: str | None) -> str | None:
    return None if path is None else public_name(Path(path))


def public_config(config: TrainConfig) -> dict[str, Any]:
    """The settings for ``run.json``, with paths reduced to their last part."""
    stored = config.model_dump(mode="json")
    stored["data"]["source"] = _last_part(stored["data"]["source"])
    stored["data"]["test"] = _last_part(stored["data"]["test"])
    if stored["noise_layer"] is not None:
        stored["noise_layer"][_PUBLIC_DATA] = _last_part(stored["noise_layer"][_PUBLIC_DATA])
    return stored


def located(config: TrainConfig) -> dict[str, Any]:
    """The data settings for ``private/``, with whole paths, because later commands may run in another folder."""
    settings = config.data.model_dump(mode="json")
    for name in ("source", "test"):
        settings[name] = _whole_path(settings[name])
    if config.noise_layer is not None and config.noise_layer.public_data is not None:
        settings[_PUBLIC_DATA] = _whole_path(config.noise_layer.public_data)
    return settings


def _whole_path(path: str | None) -> str | None:
    if path is None or path in SOURCES or not Path(path).expanduser().exists():
        return path
    return str(Path(path).expanduser().absolute())


def restore_config(stored: dict[str, Any], source: dict[str, Any] | None) -> ResolvedConfig:
    """The settings of a run, with the path of the data from its private folder or from the caller."""
    data = stored["data"] if source is None else source
    restored = {**stored, "data": {name: data[name] for name in data if name not in (_PUBLIC_DATA, FORMER_FRACTION)}}
    if source is not None and _PUBLIC_DATA in source and stored.get("noise_layer") is not None:
        restored["noise_layer"] = {**stored["noise_layer"], _PUBLIC_DATA: source[_PUBLIC_DATA]}
    try:
        return parse_settings(with_section(ResolvedConfig, restored.get("recipe"), restored.get("variant")), restored)
    except ConfigError as error:
        raise RunError(
            "the settings of this run cannot be used",
            where=f"run.json, config (data: private/source.json, where there is one): {error.where}",
            got=error.got,
            wanted=error.wanted,
            fix=error.fix if error.where == "variant" else "restore the files",
        ) from error
