"""Networks of the papers and small defaults, by name.

No network has BatchNorm, which lets one record act on the gradients of the others; norms of single records and smooth units do
well under the noise of DP-SGD (De et al. 2022). Every parameter belongs to a layer with a rule for per-example gradients: the
transformer has no class token (the mean over patches takes its place), its positions are rows of an embedding table, and its
attention is four linear layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import as_file, files
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.errors import ConfigError
from twinproof.extensions import Group, find
from twinproof.files import sha256_file
from twinproof.layers.interval import (
    CONTRAST_CNN,
    INTERVAL_CNN,
    RELU_MLP,
    contrast_cnn,
    fits_interval_prior,
    interval_cnn,
    relu_mlp,
)
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import BOTH_PLACES, NoiseForm, RedistributionKind, with_noise, with_two_noises
from twinproof.layers.scattering import MAPS, STRIDE, Scattering

Builder = Callable[[tuple[int, ...], int, int], nn.Module]
_Build = TypeVar("_Build", bound=Builder)


@dataclass(frozen=True)
class NetworkInfo:
    """One network: how to build it from (input shape, classes, width factor), and what it is."""

    build: Builder
    summary: str


NETWORKS: dict[str, NetworkInfo] = {}


def _network(name: str, summary: str) -> Callable[[_Build], _Build]:
    def register(build: _Build) -> _Build:
        NETWORKS[name] = NetworkInfo(build, summary)
        return build

    return register


@_network("mlp", "one hidden layer of 64 x width tanh units; features or small images")
def mlp(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    hidden = 64 * width
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.Tanh(), nn.Linear(hidden, classes))


def conv(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the maps at stride 1; no bias, since a normalisation follows."""
    return nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)


def image_shape(shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width); ValueError unless it is an image of at least ``smallest`` a side."""
    channels, height, across = shape
    if min(height, across) < smallest:
        raise ValueError(f"images of {height}x{across} are too small")
    return channels, height, across


def _after(size: int, kernel: int, stride: int, padding: int = 0) -> int:
    return (size + 2 * padding - kernel) // stride + 1


_GROUPS = 8  # divides every number of maps here, whatever the width
_STAGES = 3  # each halves the side


@_network("gelu-cnn", "three convolutions with GroupNorm and GELU, the first of 7x7; images from 8x8")
def gelu_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """7x7, 3x3 and 3x3 convolutions of stride 2, each with GroupNorm and GELU, then logits: 34,298 parameters on 1x28x28."""
    channels, height, across = image_shape(shape, smallest=8)
    layers: list[nn.Module] = []
    n_in = channels
    for stage in range(_STAGES):
        n_out = 16 * width * 2**stage
        layers += [conv(n_in, n_out, 3 if stage else 7, stride=2), nn.GroupNorm(_GROUPS, n_out), nn.GELU()]
        n_in = n_out
    rows, columns = (-(-size // 2**_STAGES) for size in (height, across))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(n_in * rows * columns, classes))


_RESNET_GROUPS = 32  # divides every number of channels here, whatever the width


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with norms, added to the input (or to a normalised 1x1 convolution of it), then ReLU."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(n_in, n_out, 3, stride)
        self.norm1 = nn.GroupNorm(_RESNET_GROUPS, n_out)
        self.conv2 = conv(n_out, n_out, 3)
        self.norm2 = nn.GroupNorm(_RESNET_GROUPS, n_out)
        changes = stride != 1 or n_in != n_out
        self.shortcut = nn.Sequential(conv(n_in, n_out, 1, stride), nn.GroupNorm(_RESNET_GROUPS, n_out)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps; ReLU makes new tensors, since per-example gradients read a layer's input after the forward."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


@_network("resnet-18", "residual network with a 3x3 stem and GroupNorm, 11 million parameters; images from 8x8")
def resnet_18(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Four stages of two blocks, 64 x width maps in the first: 11,173,962 parameters on 3x32x32 with 10 classes, width 1."""
    channels, _, _ = image_shape(shape, smallest=8)
    maps = 64 * width
    blocks: list[nn.Module] = []
    n_in = maps
    for stage in range(4):
        n_out = maps * 2**stage
        blocks += [BasicBlock(n_in, n_out, stride=2 if stage else 1), BasicBlock(n_out, n_out, stride=1)]
        n_in = n_out
    return nn.Sequential(
        conv(channels, maps, 3),
        nn.GroupNorm(_RESNET_GROUPS, maps),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(n_in, classes),
    )


@_network("scatter-cnn", "fixed scattering features (Morlet wavelets, two scales), then a small tanh network; images from 8x8")
def scatter_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Scattering, two tanh convolutions and two linear layers: 33,066 parameters on 1x28x28 with 10 classes, width 1."""
    channels, height, across = image_shape(shape, smallest=2 * STRIDE)
    maps, hidden = 16 * width, 32 * width
    rows, columns = (-(-size // (2 * STRIDE)) for size in (height, across))
    return nn.Sequential(
        Scattering(height, across),
        nn.Conv2d(channels * MAPS, maps, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(maps, 2 * maps, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(2 * maps * rows * columns, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )


@_network("small-cnn", "two 3x3 convolutions and two linear layers, tanh; images from 4x4")
def small_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Two 3x3 convolutions (the second with stride 2), then two linear layers; tanh throughout."""
    channels, height, across = image_shape(shape, smallest=4)
    maps, hidden = 16 * width, 32 * width
    flat = 2 * maps * ((height + 1) // 2) * ((across + 1) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, maps, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(maps, 2 * maps, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )


_PATCH = 4
_HEADS = 4
_HEAD_SIZE = 32
_DEPTH = 6
_EXPANSION = 4


class Attention(nn.Module):
    """Multi-head self-attention over the patches of one image."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, patches, size) to the same shape.

        The softmax is written out: the fused kernels of torch add up their gradients in a varying order on a GPU, and a
        record's gradient must be the same to the bit beside any other records.
        """
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(2, 3) * query.shape[3] ** -0.5, dim=3)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class TransformerBlock(nn.Module):
    """Attention and two linear layers, each behind a LayerNorm and added to its input."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.attention = Attention(size, heads)
        self.norm2 = nn.LayerNorm(size)
        self.expand = nn.Linear(size, _EXPANSION * size)
        self.contract = nn.Linear(_EXPANSION * size, size)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, patches, size) to the same shape."""
        x = x + self.attention(self.norm1(x))
        inner: Tensor = self.contract(F.gelu(self.expand(self.norm2(x))))
        return x + inner


class Patches(nn.Module):
    """Cuts an image into patches, gives each its vector and adds the vector of its position."""

    def __init__(self, shape: tuple[int, int, int], size: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.count = (height // _PATCH) * (across // _PATCH)
        self.embed = nn.Conv2d(channels, size, _PATCH, stride=_PATCH)
        self.position = nn.Embedding(self.count, size)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to (rows, patches, size)."""
        numbers = torch.arange(self.count, device=x.device).expand(x.shape[0], -1)
        vectors: Tensor = self.embed(x).flatten(2).transpose(1, 2) + self.position(numbers)
        return vectors


class MeanOverPatches(nn.Module):
    """The mean vector of an image's patches."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, patches, size) to (rows, size)."""
        return x.mean(1)


@_network("small-vit", "six transformer blocks on patches of 4x4; images from 8x8 with sides that are multiples of 4")
def small_vit(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Patches of 4x4, six blocks of size 128 x width with 4 x width heads: 1,205,642 parameters on 3x32x32, 10 classes."""
    channels, height, across = image_shape(shape, smallest=2 * _PATCH)
    if height % _PATCH or across % _PATCH:
        raise ValueError(f"images of {height}x{across} cannot be cut into patches of {_PATCH}x{_PATCH}")
    size = _HEADS * _HEAD_SIZE * width
    return nn.Sequential(
        Patches((channels, height, across), size),
        *(TransformerBlock(size, _HEADS * width) for _ in range(_DEPTH)),
        nn.LayerNorm(size),
        MeanOverPatches(),
        nn.Linear(size, classes),
    )


@_network("stobatch-cnn", "the MNIST network of StoBatch, its first 5x5 convolution an auto-encoder's layer; images from 4x4")
def stobatch_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """5x5 convolutions of 32 and 64 maps, a layer of 256 units cut to [-1, 1], logits: 317,642 parameters on 1x28x28.

    The first convolution is the auto-encoder's layer: noise is put right behind it. Batch norm, which mixes records, has become
    GroupNorm and LayerNorm.
    """
    channels, height, across = image_shape(shape, smallest=4)
    maps, units = 32 * width, 256 * width
    rows, columns = (_after(-(-size // 2) // 2, 5, 2, 2) for size in (height, across))  # a stride, a pool, a stride
    return nn.Sequential(
        nn.Conv2d(channels, maps, 5, stride=2, padding=2),
        nn.GroupNorm(_GROUPS, maps),
        nn.AvgPool2d(2),
        nn.ReLU(),
        nn.Conv2d(maps, 2 * maps, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * maps * rows * columns, units),
        nn.LayerNorm(units),
        nn.Hardtanh(-1, 1),
        nn.Linear(units, classes),
    )


@_network("tramer-boneh-cnn", "the four-layer tanh network of Tramer and Boneh (2021) and DP-CERT; images from 20x20")
def tramer_boneh_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Two tanh convolutions with overlapping max-pooling and two linear layers: 26,010 parameters on 1x28x28, width 1."""
    channels, height, across = shape
    rows, columns = (_after(_after(_after(_after(size, 8, 2, 2), 2, 1), 4, 2), 2, 1) for size in (height, across))
    if min(rows, columns) < 1:
        raise ValueError(f"images of {height}x{across} are too small")
    maps, hidden = 16 * width, 32 * width
    return nn.Sequential(
        nn.Conv2d(channels, maps, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(maps, 2 * maps, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(2 * maps * rows * columns, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )


_STEM = 16
_WIDE_RESNET_GROUPS = 16  # divides every number of channels here, whatever the width
_BLOCKS_PER_STAGE = 2  # 16 layers = 3 stages x 2 blocks x 2 convolutions, the stem, three shortcuts and the last layer


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution, twice, added to the input; where the shape changes, to a 1x1 convolution of it."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_WIDE_RESNET_GROUPS, n_in)
        self.conv1 = conv(n_in, n_out, 3, stride)
        self.norm2 = nn.GroupNorm(_WIDE_RESNET_GROUPS, n_out)
        self.conv2 = conv(n_out, n_out, 3)
        self.shortcut = conv(n_in, n_out, 1, stride) if stride != 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps; ReLU makes new tensors, since per-example gradients read a layer's input after the forward."""
        active = F.relu(self.norm1(x))
        carried = x if self.shortcut is None else self.shortcut(active)
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return inner + carried


@_network("wrn-16-4", "wide residual network with GroupNorm, the CIFAR-10 network of De et al. (2022); images from 8x8")
def wide_resnet_16_4(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """WRN-16-(4 x width), without weight standardisation: 2,748,890 parameters on 3x32x32 with 10 classes, width 1."""
    channels, _, _ = image_shape(shape, smallest=8)
    blocks: list[nn.Module] = []
    n_in = _STEM
    for stage, maps in enumerate((16, 32, 64)):
        n_out = 4 * width * maps
        for block in range(_BLOCKS_PER_STAGE):
            blocks.append(PreActivationBlock(n_in, n_out, stride=2 if stage > 0 and block == 0 else 1))
            n_in = n_out
    return nn.Sequential(
        conv(channels, _STEM, 3),
        *blocks,
        nn.GroupNorm(_WIDE_RESNET_GROUPS, n_in),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(n_in, classes),
    )


_network(INTERVAL_CNN, "two ReLU convolutions of stride 2 and two linear layers, for interval bounds; images from 8x8")(
    interval_cnn
)
_network(CONTRAST_CNN, "interval-cnn behind a fixed ramp at 1/2, for nearly black and white images from 8x8")(contrast_cnn)
_network(RELU_MLP, "one hidden layer of 64 x width ReLU units, for interval bounds; features or small images")(relu_mlp)


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


def build_run_network(
    settings: Mapping[str, Any], shape: tuple[int, ...], classes: int, network: nn.Module | None = None
) -> nn.Module:
    """The network of these ``settings`` (``config`` of run.json), with its noise layers and random weights.

    ``network`` is the caller's own, where the settings name such a one. Where weights are loaded afterwards, the deviations
    and scales of the noise are loaded with them.
    """
    if network is None:
        network = build_network(settings["model"], shape, classes, width=settings["width"])
    variant = find(Group.VARIANTS, f"{settings.get('recipe')}.{settings.get('variant')}")
    if (adds := getattr(variant, "network", None)) is not None:
        made: nn.Module = adds(network, shape)
        return made
    noise = settings.get("noise_layer")
    if noise is None:
        return network
    sigma, law = float(settings["sigma"]), Law(noise["law"])
    if noise["place"] == BOTH_PLACES:  # scales in proportion to the layer are set by the constraint
        return with_two_noises(network, shape, sigma, sigma, law)
    redistribution = RedistributionKind(noise["redistribution"])
    form = NoiseForm(Place(noise["place"]), law, redistribution, float(noise["floor"]), float(noise["width"]))
    return with_noise(network, shape, form, sigma)


class Prior(StrEnum):
    """What a network starts from: random weights, or some that were learned from generated figures."""

    NONE = "none"
    FIGURES = "figures"


PRIOR_NETWORK, PRIOR_WIDTH = "gelu-cnn", 2
PRIOR_SIGMAS = (0.25, 0.5, 1.0)
"""Input noise that each of them was learned under."""
PRIOR_SIZES = {INTERVAL_CNN: (0.11, 0.33), CONTRAST_CNN: (0.05, 0.11, 0.33)}
"""Sizes of the ball, in linf and input units, that weights of these networks were learned for."""
_PRIOR_LEVELS = {PRIOR_NETWORK: PRIOR_SIGMAS, **PRIOR_SIZES}
_PRIOR_FILE, _INTERVAL_PRIOR_FILE = "prior.safetensors", "interval-prior.safetensors"


def _prior_file(network: str) -> str:
    return _INTERVAL_PRIOR_FILE if network in PRIOR_SIZES else _PRIOR_FILE


def has_prior(network: str, shape: tuple[int, ...], width: int) -> bool:
    """Whether there are weights for this network: images of one channel, of any size whose layers have the same shapes."""
    if network in PRIOR_SIZES:
        return width == 1 and fits_interval_prior(shape) and (files(__package__) / _prior_file(network)).is_file()
    return (network, width) == (PRIOR_NETWORK, PRIOR_WIDTH) and len(shape) == 3 and shape[0] == 1


def prior_key(level: float, name: str, network: str = PRIOR_NETWORK) -> str:
    """The name in the file of a weight learned under noise of this level, or for a ball of this size."""
    return f"{network}/{level:g}/{name}" if network in PRIOR_SIZES else f"{level:g}/{name}"


def start_from_prior(network: nn.Module, level: float, name: str = PRIOR_NETWORK) -> None:
    """Gives ``network``, one called ``name`` that has a prior, the weights learned at the nearest level; the last layer stays.

    The level is the noise's deviation; for networks with interval bounds the size of the ball.

    Guarantees
        What is loaded is a constant of this package, learned from images that a program drew. The account of privacy holds for
        any weights to start from that were fixed without looking at the records.
    """
    nearest = min(_PRIOR_LEVELS[name], key=lambda known: abs(math.log(known / level)))
    prefix = prior_key(nearest, "", name)
    stored = _weights(name).items()
    learned = {key.removeprefix(prefix): value.float() for key, value in stored if key.startswith(prefix)}
    network.load_state_dict({**network.state_dict(), **learned})


def prior_sha256(network: str = PRIOR_NETWORK) -> str:
    """The digest of the file in this package: another version may ship other weights."""
    return _digest(_prior_file(network))


def _weights(network: str) -> dict[str, Tensor]:
    return _loaded(_prior_file(network))


@functools.lru_cache(maxsize=2)
def _digest(file: str) -> str:
    with as_file(files(__package__) / file) as path:
        return sha256_file(path)


@functools.lru_cache(maxsize=2)
def _loaded(file: str) -> dict[str, Tensor]:
    with as_file(files(__package__) / file) as path:
        return load_file(path)
