"""Networks by name, so that a run's weights can be loaded again from its settings alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from twinproof.errors import ConfigError
from twinproof.layers.models.gelu_cnn import gelu_cnn
from twinproof.layers.models.mlp import mlp
from twinproof.layers.models.resnet import resnet_18
from twinproof.layers.models.scatter_cnn import scatter_cnn
from twinproof.layers.models.small_cnn import small_cnn
from twinproof.layers.models.small_vit import small_vit
from twinproof.layers.models.stobatch_cnn import stobatch_cnn
from twinproof.layers.models.tramer_boneh_cnn import tramer_boneh_cnn
from twinproof.layers.models.wide_resnet import wide_resnet_16_4

Builder = Callable[[tuple[int, ...], int, int], nn.Module]


@dataclass(frozen=True)
class NetworkInfo:
    """One network: how to build it from (input shape, classes, width factor), and what it is."""

    build: Builder
    summary: str


NETWORKS: dict[str, NetworkInfo] = {
    "mlp": NetworkInfo(mlp, "one hidden layer of 64 x width tanh units; features or small images"),
    "small-cnn": NetworkInfo(small_cnn, "two 3x3 convolutions and two linear layers, tanh; images from 4x4"),
    "tramer-boneh-cnn": NetworkInfo(
        tramer_boneh_cnn, "the four-layer tanh network of Tramer and Boneh (2021) and DP-CERT; images from 20x20"
    ),
    "gelu-cnn": NetworkInfo(gelu_cnn, "three convolutions with GroupNorm and GELU, the first of 7x7; images from 8x8"),
    "scatter-cnn": NetworkInfo(
        scatter_cnn, "fixed scattering features (Morlet wavelets, two scales), then a small tanh network; images from 8x8"
    ),
    "stobatch-cnn": NetworkInfo(
        stobatch_cnn, "the MNIST network of StoBatch, its first 5x5 convolution an auto-encoder's layer; images from 4x4"
    ),
    "wrn-16-4": NetworkInfo(
        wide_resnet_16_4, "wide residual network with GroupNorm, the CIFAR-10 network of De et al. (2022); images from 8x8"
    ),
    "resnet-18": NetworkInfo(
        resnet_18, "residual network with a 3x3 stem and GroupNorm, 11 million parameters; images from 8x8"
    ),
    "small-vit": NetworkInfo(
        small_vit, "six transformer blocks on patches of 4x4; images from 8x8 with sides that are multiples of 4"
    ),
}


def default_network(shape: tuple[int, ...]) -> str:
    """The network used when none is named: decided by the input's shape, which is public."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    return "tramer-boneh-cnn" if min(shape[1:]) >= 20 else "small-cnn"


def build_network(name: str, shape: tuple[int, ...], classes: int, *, width: int = 1) -> nn.Module:
    """Builds a network by name; its weights come from torch's global generator."""
    if name not in NETWORKS:
        raise ConfigError("there is no such network", where="model", got=name, wanted=" or ".join(sorted(NETWORKS)))
    try:
        return NETWORKS[name].build(shape, classes, width)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            "this network does not fit the input",
            where="model",
            got=f"{name} for inputs of shape {shape}: {error}",
            wanted=NETWORKS[name].summary,
            fix=f"use model={default_network(shape)}",
        ) from error
