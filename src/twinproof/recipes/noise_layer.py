"""The settings of a noise layer: where noise enters, of which law, how much of it, and how it is spread over the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from twinproof.errors import ConfigError
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_constraint import WeightRule
from twinproof.layers.noise_placement import BOTH_PLACES, NoiseForm, RedistributionKind
from twinproof.privacy.linear_maps import Norm
from twinproof.privacy.mechanisms import HETEROGENEOUS, LAPLACE, LARGEST_EPSILON, calibrate, laplace_scale

BothPlaces = Literal["input-and-first-layer"]
MechanismName = Literal["classic", "extended", "analytic", "heterogeneous", "heterogeneous-analytic", "laplace"]
LARGEST_SIGMA = 10.0
# PixelDP's usual bound. In linf the whole input may move at once: an equal l2 length is that over the root of its size.
_DEFAULT_BOUND = 0.1
Deviations = Mapping[str, Callable[[float, float], float]]
"""Other noise at sensitivity 1, by mechanism, from (epsilon, delta)."""


class SharesConfig(BaseModel):
    """How noise is shared out over the coordinates of the first layer, or of the input: the redistribution vector r."""

    redistribution: RedistributionKind = Field(
        default=RedistributionKind.UNIFORM, description="where the share of each output comes from"
    )
    beta: float = Field(default=1.0, gt=0, le=8, description="inflation rate: power of the gradient's magnitude")
    floor: float = Field(default=0.1, gt=0, lt=1, description="smallest share of an output, over the mean share")
    width: float = Field(default=0.5, ge=0, lt=1, description="how far random shares may lie from equal ones")
    public_data: str | None = Field(default=None, min_length=1, description="data set for redistribution=public")
    r_clip: float = Field(default=0.01, ge=1e-30, le=1e30, description="bound on one record's part in r")
    r_noise_multiplier: float = Field(default=20.0, ge=0.1, le=1e5, description="deviation of the noise on r over r_clip")


class NoiseLayerConfig(SharesConfig):
    """Settings of the noise layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: Place | BothPlaces = Field(default=Place.FIRST_LAYER, description="where the noise enters")
    law: Law = Field(default=Law.GAUSSIAN, description="distribution of the noise")
    norm: Norm = Field(default=Norm.L2, description="norm in which the layer is bounded and attacks are measured")
    attack_bound: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="construction attack bound L, in input units; if unset 0.1, in linf over the root of the input's size",
    )
    epsilon_r: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="epsilon of the robustness mechanism; not privacy"
    )
    delta_r: float = Field(default=1e-5, gt=0, lt=1, description="delta of the robustness mechanism; not used by laplace")
    mechanism: MechanismName = Field(default="analytic", description="formula that sizes the noise")
    weights: WeightRule = Field(default=WeightRule.PROJECT, description="what is done about the layer's norm after each update")
    hidden_share: float = Field(
        default=1.0, gt=0, le=100, description="at both places: noise behind the layer, over what attack_bound asks for there"
    )

    @property
    def form(self) -> NoiseForm:
        """What decides the layer's modules; of two noises, those of the one behind the first layer."""
        place = self.place if isinstance(self.place, Place) else Place.FIRST_LAYER
        return NoiseForm(place, self.law, self.redistribution, self.floor, self.width)


def check_noise_layer(noise: NoiseLayerConfig, deviations: Deviations) -> None:
    """Refuses settings that contradict each other."""
    redistributed = noise.redistribution is not RedistributionKind.UNIFORM
    if (noise.law is Law.LAPLACE) != (noise.mechanism == LAPLACE):
        raise _contradiction(
            "the noise's law and its calibration disagree",
            {"law": noise.law, "mechanism": noise.mechanism},
            "law laplace with mechanism laplace, or law gaussian with another mechanism",
        )
    if noise.mechanism == "classic" and noise.epsilon_r > LARGEST_EPSILON and noise.mechanism not in deviations:
        raise _contradiction(
            "the classic Gaussian mechanism is proven for epsilon up to 1 only",
            {"epsilon_r": noise.epsilon_r, "mechanism": noise.mechanism},
            "epsilon_r at most 1, or mechanism analytic: any epsilon, and less noise",
        )
    # Laplace's law spreads like any other: divided by their scales, all outputs have the same noise again.
    if redistributed and noise.mechanism not in (*HETEROGENEOUS, LAPLACE):
        raise _contradiction(
            "this mechanism gives every output the same noise",
            {"redistribution": noise.redistribution, "mechanism": noise.mechanism},
            f"redistribution uniform, or mechanism {' or '.join((*HETEROGENEOUS, LAPLACE))}",
        )
    if noise.place == BOTH_PLACES and (noise.law is not Law.LAPLACE or redistributed):
        raise _contradiction(
            "noise at both places is certified where both are Laplace's and equal for all coordinates",
            {"place": noise.place, "law": noise.law, "redistribution": noise.redistribution},
            "law laplace with redistribution uniform, or another place",
        )
    if noise.public_data is not None and noise.redistribution is not RedistributionKind.PUBLIC:
        raise _contradiction(
            "public data are named, but r does not come from them",
            {"public_data": noise.public_data, "redistribution": noise.redistribution},
            "redistribution public, or no public_data",
        )


def _contradiction(what: str, given: dict[str, object], wanted: str) -> ConfigError:
    return ConfigError(
        what,
        where=", ".join(f"noise_layer.{key}" for key in given),
        got=", ".join(f"{key} = {value}" for key, value in given.items()),
        wanted=wanted,
    )


def settled_noise(
    noise: NoiseLayerConfig, shape: tuple[int, ...], deviations: Deviations = MappingProxyType({})
) -> tuple[NoiseLayerConfig, float]:
    """Fills in the attack bound, and calculates sigma: the noise's deviation per unit of the layer's norm.

    Sigma is what the mechanism asks for at sensitivity 1, times the attack bound: a layer of norm 1 moves by at most the
    bound, in the norm that belongs to the noise, when its input does. For Laplace noise sigma is the scale. A variant may have
    ``deviations`` of its own.
    """
    check_noise_layer(noise, deviations)
    bound = noise.attack_bound
    if bound is None:
        bound = _DEFAULT_BOUND / (math.sqrt(math.prod(shape)) if noise.norm is Norm.LINF else 1)
    sigma = _unit_deviation(noise, deviations) * bound
    if not 0 < sigma <= LARGEST_SIGMA:
        raise ConfigError(
            "the noise that follows from these settings cannot be used",
            where="noise_layer.attack_bound, noise_layer.epsilon_r, noise_layer.delta_r",
            got=f"sigma = {sigma:g}",
            wanted=f"above 0 and at most {LARGEST_SIGMA:g}",
            fix="choose a smaller attack_bound, or a larger epsilon_r",
        )
    return noise.model_copy(update={"attack_bound": bound}), sigma


def _unit_deviation(noise: NoiseLayerConfig, deviations: Deviations) -> float:
    if noise.mechanism == LAPLACE:
        return laplace_scale(noise.epsilon_r)
    if noise.mechanism in deviations:
        return deviations[noise.mechanism](noise.epsilon_r, noise.delta_r)
    return calibrate(noise.mechanism, noise.epsilon_r, noise.delta_r).sigma
