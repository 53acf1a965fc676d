"""The larger networks: published sizes, every input they take, and per-example gradients by the fast path, equal to vmap's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.errors import ConfigError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.layers.networks import NETWORKS, Attention, build_network, small_vit
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example import FastPath, VmapPath, choose_path

LARGE = ["wrn-16-4", "resnet-18", "small-vit"]
SMALL_SHAPE = (2, 8, 8)  # the smallest image that all of them take: the same code in a fraction of the time
CLASSES = 3


def _parameters(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def _model(name: str) -> nn.Module:
    """In float64: in float32 a ReLU whose input is zero but for rounding may open in one path and not in the other."""
    torch.manual_seed(0)
    return build_network(name, SMALL_SHAPE, CLASSES).double()


def _records(number: int, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(number, copies, *SMALL_SHAPE, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (number,), generator=generator)


@pytest.mark.parametrize(
    ("name", "shape", "width", "wanted"),
    [
        ("wrn-16-4", (3, 32, 32), 1, 2_748_890),
        ("wrn-16-4", (1, 28, 28), 1, 2_748_890 - 2 * 16 * 9),
        ("wrn-16-4", (3, 32, 32), 2, 10_961_370),  # WRN-16-8, published as 11.0 million
        ("resnet-18", (3, 32, 32), 1, 11_173_962),
        ("resnet-18", (1, 28, 28), 1, 11_173_962 - 2 * 64 * 9),
        ("small-vit", (3, 32, 32), 1, 1_205_642),
        ("small-vit", (1, 28, 28), 1, 1_205_642 - 2 * 128 * 16 - (64 - 49) * 128),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], width: int, wanted: int) -> None:
    assert _parameters(build_network(name, shape, 10, width=width)) == wanted


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in LARGE for shape in [(3, 32, 32), (1, 28, 28), (2, 8, 8)]] + [("wrn-16-4", (1, 9, 13))],
)
def test_scores_for_every_input(name: str, shape: tuple[int, ...]) -> None:
    model = build_network(name, shape, 7)
    scores = model(torch.rand(2, *shape))
    assert scores.shape == (2, 7)
    scores.sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    refuse_cross_example_layers(model)


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("name", LARGE)
def test_every_width_has_valid_groups_and_heads(name: str, width: int) -> None:
    assert build_network(name, SMALL_SHAPE, 4, width=width)(torch.rand(1, *SMALL_SHAPE)).shape == (1, 4)


def test_wide_resnet_halves_the_maps_twice() -> None:
    x, sizes = torch.rand(1, 3, 32, 32), []
    for layer in build_network("wrn-16-4", (3, 32, 32), 10).children():
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[:7] == [(16, 32, 32), *[(64, 32, 32)] * 2, *[(128, 16, 16)] * 2, *[(256, 8, 8)] * 2]


@pytest.mark.parametrize("name", LARGE)
def test_the_fast_path_is_chosen_and_equals_vmap(name: str) -> None:
    model = _model(name)
    chosen = choose_path(model, mean_cross_entropy, SMALL_SHAPE, CLASSES, copies=2)
    assert isinstance(chosen, FastPath), getattr(chosen, "reason", "")
    inputs, labels = _records(2, 2, seed=1)
    found = chosen.gradients(inputs, labels).by_name
    wanted = VmapPath(model, mean_cross_entropy).gradients(inputs, labels).by_name
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    scale = max(float(value.instantiate().abs().max()) for value in wanted.values())
    for parameter, value in wanted.items():
        difference = (found[parameter].instantiate() - value.instantiate()).abs().max()
        assert float(difference) <= 1e-8 * scale, parameter


@pytest.mark.parametrize("name", LARGE)
def test_a_record_keeps_its_gradient_beside_other_records(name: str) -> None:
    model = _model(name)
    path = FastPath(model, mean_cross_entropy)
    inputs, labels = _records(2, 1, seed=2)
    others, other_labels = _records(2, 1, seed=3)
    others[0], other_labels[0] = inputs[0], labels[0]
    first, second = path.gradients(inputs, labels), path.gradients(others, other_labels)
    assert torch.equal(first.losses[0], second.losses[0])
    for parameter, value in first.by_name.items():
        assert torch.equal(value.instantiate()[0], second.by_name[parameter].instantiate()[0]), parameter


def test_a_class_token_of_its_own_would_lose_the_fast_path() -> None:
    """The planted variant: a parameter outside any layer, as most vision transformers have it."""

    class WithToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small_vit(SMALL_SHAPE, CLASSES)
            self.token = nn.Parameter(torch.zeros(CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.body(x)
            return logits + self.token

    chosen = choose_path(WithToken().double(), mean_cross_entropy, SMALL_SHAPE, CLASSES, copies=1)
    assert isinstance(chosen, VmapPath)
    assert "token" in chosen.reason


def test_attention_is_what_torch_computes() -> None:
    torch.manual_seed(0)
    layer = Attention(24, 3).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    query, key, value = (part(x).view(2, 5, 3, 8).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    wanted = layer.out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 5, 24))
    torch.testing.assert_close(layer(x), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("patch", [0, 3])
def test_the_transformer_knows_where_a_patch_was(patch: int) -> None:
    """Without positions the mean over patches would not notice that two of them changed places."""
    torch.manual_seed(0)
    model = small_vit((1, 8, 8), CLASSES).double()
    image = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    moved = image.roll(4, dims=3) if patch == 0 else image.roll(4, dims=2)
    assert not torch.allclose(model(image), model(moved), rtol=1e-6)
    with torch.no_grad():
        model.get_parameter("0.position.weight").zero_()
    torch.testing.assert_close(model(image), model(moved))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[(name, shape) for name in LARGE for shape in [(64,), (8, 8), (1, 1, 8, 8), (1, 7, 8), (3, 32, 4)]],
        ("small-vit", (1, 30, 28)),
        ("small-vit", (3, 32, 33)),
    ],
)
def test_an_input_that_does_not_fit_names_a_network_that_does(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="does not fit the input") as refused:
        build_network(name, shape, 10)
    remedy = refused.value.fix.removeprefix("use model=")
    assert remedy in NETWORKS
    build_network(remedy, shape, 10)
