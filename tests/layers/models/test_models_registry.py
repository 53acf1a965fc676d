"""The networks: sizes that the papers state, every input they take, and a clear error for every one they do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinproof.errors import ConfigError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.layers.networks import NETWORKS, build_network, default_network


def _parameters(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def test_tramer_boneh_has_the_published_size() -> None:
    assert _parameters(build_network("tramer-boneh-cnn", (1, 28, 28), 10)) == 26_010


def test_tramer_boneh_has_the_published_maps() -> None:
    """The number of parameters on 28x28 is the same for padding 2 and 3; the size of the first maps is not."""
    model = build_network("tramer-boneh-cnn", (1, 28, 28), 10)
    x, sizes = torch.rand(1, 1, 28, 28), []
    for layer in model.children():
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(16, 13, 13), (16, 12, 12), (32, 5, 5), (32, 4, 4)]


def test_the_other_sizes_are_what_their_layers_say() -> None:
    assert _parameters(build_network("mlp", (13,), 3)) == 13 * 64 + 64 + 64 * 3 + 3
    convolutions = (16 * 9 + 16) + (32 * 16 * 9 + 32)
    assert _parameters(build_network("small-cnn", (1, 8, 8), 10)) == convolutions + (32 * 16 * 32 + 32) + (32 * 10 + 10)


def test_stobatch_has_the_published_layers() -> None:
    model = build_network("stobatch-cnn", (1, 28, 28), 10)
    assert _parameters(model) == 317_642
    kinds = (nn.Conv2d, nn.AvgPool2d, nn.Linear)
    x, sizes = torch.rand(1, 1, 28, 28), []
    for layer in model.children():
        x = layer(x)
        if isinstance(layer, kinds):
            sizes.append(tuple(x.shape[1:]))
        if isinstance(layer, nn.Hardtanh):
            assert float(x.detach().abs().max()) <= 1
    assert sizes == [(32, 14, 14), (32, 7, 7), (64, 4, 4), (256,), (10,)]


SHAPES = [
    ("mlp", (7,)),
    ("mlp", (1, 8, 8)),
    ("mlp", (1, 1, 1)),
    ("small-cnn", (1, 8, 8)),
    ("small-cnn", (3, 32, 32)),
    ("small-cnn", (1, 4, 4)),
    ("small-cnn", (2, 5, 9)),
    ("stobatch-cnn", (1, 8, 8)),
    ("stobatch-cnn", (1, 4, 4)),
    ("stobatch-cnn", (3, 5, 9)),
    ("tramer-boneh-cnn", (1, 28, 28)),
    ("tramer-boneh-cnn", (3, 32, 32)),
    ("tramer-boneh-cnn", (1, 20, 20)),
    ("tramer-boneh-cnn", (1, 21, 37)),
]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_scores_for_every_input(name: str, shape: tuple[int, ...], classes: int, width: int) -> None:
    model = build_network(name, shape, classes, width=width)
    scores = model(torch.rand(5, *shape))
    assert scores.shape == (5, classes)
    scores.sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    refuse_cross_example_layers(model)


@pytest.mark.parametrize(
    "shape", [(1,), (2, 3), (1, 1, 1), (1, 3, 3), (1, 4, 4), (1, 8, 8), (3, 19, 40), (1, 20, 20), (3, 224, 224)]
)
def test_the_default_network_always_fits(shape: tuple[int, ...]) -> None:
    assert build_network(default_network(shape), shape, 3)(torch.rand(1, *shape)).shape == (1, 3)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((4,), "mlp"),
        ((1, 8, 8), "small-cnn"),
        ((1, 19, 28), "small-cnn"),
        ((1, 28, 28), "tramer-boneh-cnn"),
        ((1, 2, 9), "mlp"),
    ],
)
def test_default_network(shape: tuple[int, ...], name: str) -> None:
    assert default_network(shape) == name


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small-cnn", (1, 3, 8)),
        ("small-cnn", (64,)),
        ("small-cnn", (8, 8)),
        ("small-cnn", (1, 1, 8, 8)),
        ("tramer-boneh-cnn", (1, 8, 8)),
        ("tramer-boneh-cnn", (1, 28, 15)),
        ("tramer-boneh-cnn", (30,)),
    ],
)
def test_an_input_that_does_not_fit_names_a_network_that_does(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="does not fit the input") as refused:
        build_network(name, shape, 10)
    assert refused.value.where == "model"
    remedy = refused.value.fix.removeprefix("use model=")
    assert remedy in NETWORKS
    build_network(remedy, shape, 10)


def test_an_unknown_network_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no such network") as refused:
        build_network("resnet", (1, 28, 28), 10)
    assert all(name in refused.value.wanted for name in NETWORKS)


def test_every_network_says_what_it_is() -> None:
    assert all(info.summary for info in NETWORKS.values())
