"""The networks: published sizes, every input they take, gradients by the fast path, and what certification asks of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.certification.lowering import AS_GIVEN, CHANNELS_LAST
from twinproof.certification.votes import base_classifier
from twinproof.compute.devices import Captured
from twinproof.errors import ConfigError, ModelError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.layers.networks import NETWORKS, Attention, build_network, default_network, small_vit
from twinproof.layers.scattering import Scattering
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example import FastPath, VmapPath, choose_path

HOUSE, LARGE = ("scatter-cnn", "gelu-cnn"), ("wrn-16-4", "resnet-18", "small-vit")
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "mlp": ((7,), (1, 8, 8), (1, 1, 1)),
    "small-cnn": ((1, 8, 8), (3, 32, 32), (1, 4, 4), (2, 5, 9)),
    "relu-mlp": ((7,), (1, 8, 8), (1, 1, 1)),
    "interval-cnn": ((1, 8, 8), (3, 32, 32), (1, 9, 22)),
    "stobatch-cnn": ((1, 8, 8), (1, 4, 4), (3, 5, 9)),
    "tramer-boneh-cnn": ((1, 28, 28), (3, 32, 32), (1, 20, 20), (1, 21, 37)),
    **dict.fromkeys(HOUSE, ((1, 28, 28), (3, 32, 32), (2, 8, 8), (1, 9, 22))),
    "wrn-16-4": ((3, 32, 32), (1, 28, 28), (2, 8, 8), (1, 9, 13)),
    **dict.fromkeys(("resnet-18", "small-vit"), ((3, 32, 32), (1, 28, 28), (2, 8, 8))),
}
CLASSES = 3


@pytest.mark.parametrize(
    ("name", "shape", "classes", "width", "wanted"),
    [
        ("mlp", (13,), 3, 1, 13 * 64 + 64 + 64 * 3 + 3),
        ("small-cnn", (1, 8, 8), 10, 1, (16 * 9 + 16) + (32 * 16 * 9 + 32) + (32 * 16 * 32 + 32) + (32 * 10 + 10)),
        ("relu-mlp", (13,), 3, 1, 13 * 64 + 64 + 64 * 3 + 3),
        ("interval-cnn", (1, 28, 28), 10, 1, 109_706),
        ("tramer-boneh-cnn", (1, 28, 28), 10, 1, 26_010),
        ("stobatch-cnn", (1, 28, 28), 10, 1, 317_642),
        ("scatter-cnn", (1, 28, 28), 10, 1, 33_066),
        ("gelu-cnn", (1, 28, 28), 10, 1, 34_298),
        ("wrn-16-4", (3, 32, 32), 10, 1, 2_748_890),
        ("wrn-16-4", (1, 28, 28), 10, 1, 2_748_890 - 2 * 16 * 9),
        ("wrn-16-4", (3, 32, 32), 10, 2, 10_961_370),  # WRN-16-8, published as 11.0 million
        ("resnet-18", (3, 32, 32), 10, 1, 11_173_962),
        ("resnet-18", (1, 28, 28), 10, 1, 11_173_962 - 2 * 64 * 9),
        ("small-vit", (3, 32, 32), 10, 1, 1_205_642),
        ("small-vit", (1, 28, 28), 10, 1, 1_205_642 - 2 * 128 * 16 - (64 - 49) * 128),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], classes: int, width: int, wanted: int) -> None:
    model = build_network(name, shape, classes, width=width)
    assert sum(value.numel() for value in model.parameters()) == wanted
    assert NETWORKS[name].summary


@pytest.mark.parametrize(
    ("name", "side", "kinds", "wanted"),
    [
        # The number of parameters on 28x28 is the same for padding 2 and 3; the size of the first maps is not.
        ("tramer-boneh-cnn", 28, (nn.Conv2d, nn.MaxPool2d), [(16, 13, 13), (16, 12, 12), (32, 5, 5), (32, 4, 4)]),
        ("interval-cnn", 28, (nn.Conv2d, nn.Linear), [(16, 14, 14), (32, 7, 7), (64,), (10,)]),
        ("stobatch-cnn", 28, (nn.Conv2d, nn.AvgPool2d, nn.Linear), [(32, 14, 14), (32, 7, 7), (64, 4, 4), (256,), (10,)]),
        (
            "wrn-16-4",
            32,
            (nn.Module,),
            [(16, 32, 32), *[(64, 32, 32)] * 2, *[(128, 16, 16)] * 2, *[(256, 8, 8)] * 4, (256, 1, 1), (256,), (10,)],
        ),
    ],
)
def test_maps_have_the_published_sizes(
    name: str, side: int, kinds: tuple[type[nn.Module], ...], wanted: list[tuple[int, ...]]
) -> None:
    x, sizes = torch.rand(1, 1, side, side), []
    for layer in build_network(name, (1, side, side), 10).children():
        x = layer(x)
        if isinstance(layer, kinds):
            sizes.append(tuple(x.shape[1:]))
        if isinstance(layer, nn.Hardtanh):
            assert float(x.detach().abs().max()) <= 1
    assert sizes == wanted


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
def test_scores_for_every_input(name: str, shape: tuple[int, ...]) -> None:
    small = shape[-1] < 28 or name not in LARGE
    for width, classes in ((1, 7), (3, 2)) if small else ((1, 7),):
        model = build_network(name, shape, classes, width=width)
        scores = model(torch.rand(2, *shape))
        assert scores.shape == (2, classes)
        scores.sum().backward()
        assert all(value.grad is not None for value in model.parameters())
        refuse_cross_example_layers(model)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1,), "mlp"),
        ((2, 3), "mlp"),
        ((1, 1, 1), "mlp"),
        ((1, 2, 9), "mlp"),
        ((1, 4, 4), "small-cnn"),
        ((1, 19, 28), "small-cnn"),
        ((1, 20, 20), "tramer-boneh-cnn"),
        ((3, 224, 224), "tramer-boneh-cnn"),
    ],
)
def test_the_default_network_fits(shape: tuple[int, ...], name: str) -> None:
    assert default_network(shape) == name
    assert build_network(name, shape, 3)(torch.rand(1, *shape)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[("small-cnn", shape) for shape in [(1, 3, 8), (64,), (8, 8), (1, 1, 8, 8)]],
        *[("tramer-boneh-cnn", shape) for shape in [(1, 8, 8), (1, 28, 15), (30,)]],
        *[("interval-cnn", shape) for shape in [(1, 7, 8), (64,), (8, 8), (1, 1, 8, 8)]],
        *[(name, shape) for name in (*HOUSE, *LARGE) for shape in [(64,), (8, 8), (1, 1, 8, 8), (1, 7, 8)]],
        *[("small-vit", shape) for shape in [(1, 30, 28), (3, 32, 33), (3, 32, 4)]],
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


def _shape(name: str) -> tuple[int, ...]:
    return (1, 12, 12) if name in HOUSE else (2, 8, 8)


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_network(name, _shape(name), CLASSES)
    # In float32 a ReLU whose input is zero but for rounding may open in one path and not in the other.
    return model if name in HOUSE else model.double()


def _records(name: str, number: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if name in HOUSE else torch.float64
    inputs = torch.rand(number, 2, *_shape(name), generator=generator, dtype=dtype)
    return inputs, torch.randint(0, CLASSES, (number,), generator=generator)


@pytest.mark.parametrize("name", [*HOUSE, *LARGE])
def test_the_fast_path_is_chosen_and_equals_vmap(name: str) -> None:
    model = _model(name).double()
    chosen = choose_path(model, mean_cross_entropy, _shape(name), CLASSES, copies=2)
    assert isinstance(chosen, FastPath), getattr(chosen, "reason", "")
    inputs, labels = _records(name, 2, seed=1)
    found = chosen.gradients(inputs.double(), labels).by_name
    wanted = VmapPath(model, mean_cross_entropy).gradients(inputs.double(), labels).by_name
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    scale = max(float(value.instantiate().abs().max()) for value in wanted.values())
    allowed = (1e-10 if name in HOUSE else 1e-8) * scale
    for parameter, value in wanted.items():
        assert float((found[parameter].instantiate() - value.instantiate()).abs().max()) <= allowed, parameter


def test_a_class_token_of_its_own_would_lose_the_fast_path() -> None:
    """The planted variant: a parameter outside any layer, as most vision transformers have it."""

    class WithToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small_vit((2, 8, 8), CLASSES)
            self.token = nn.Parameter(torch.zeros(CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.body(x)
            return logits + self.token

    chosen = choose_path(WithToken().double(), mean_cross_entropy, (2, 8, 8), CLASSES, copies=1)
    assert isinstance(chosen, VmapPath)
    assert "token" in chosen.reason


class AverageScattering(nn.Module):
    """The planted variant: features measured by the batch's own mean, as data-dependent normalisation does it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scattering(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.inner(x)
        return features / features.mean((0, 2, 3), keepdim=True)


def _changes_with_neighbours(name: str, model: nn.Module) -> bool:
    path = FastPath(model, mean_cross_entropy)
    inputs, labels = _records(name, 3, seed=2)
    others, other_labels = _records(name, 3, seed=3)
    others[0], other_labels[0] = inputs[0], labels[0]
    first, second = path.gradients(inputs, labels).by_name, path.gradients(others, other_labels).by_name
    return any(not torch.equal(value.instantiate()[0], second[name].instantiate()[0]) for name, value in first.items())


@pytest.mark.parametrize("name", [*HOUSE, *LARGE])
def test_a_record_keeps_every_bit_of_its_gradient_beside_other_records(name: str) -> None:
    assert not _changes_with_neighbours(name, _model(name))


def test_features_measured_by_the_batch_are_caught() -> None:
    planted = _model("scatter-cnn")
    assert isinstance(planted, nn.Sequential)
    planted[0] = AverageScattering()
    assert _changes_with_neighbours("scatter-cnn", planted)
    with torch.no_grad(), pytest.raises(ModelError, match="depends on the other inputs"):
        base_classifier(planted.eval(), torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0)), 64)


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


@pytest.mark.parametrize("form", [None, AS_GIVEN, CHANNELS_LAST])
@pytest.mark.parametrize("name", HOUSE)
def test_certification_takes_them_in_every_form(name: str, form: str | None) -> None:
    model, example = _model(name).eval(), torch.rand(1, *_shape(name), generator=torch.Generator().manual_seed(4))
    noisy = example + torch.randn((6, *_shape(name)), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        base = base_classifier(model, example, 16, form=form)
        torch.testing.assert_close(base.network(noisy.clone()), model(noisy), rtol=0, atol=1e-5)
    assert base.classes == CLASSES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", HOUSE)
def test_a_recording_gives_the_same_scores(name: str) -> None:
    device = torch.device("cuda")
    model, inputs = _model(name).to(device).eval(), torch.zeros(64, *_shape(name), device=device)
    scores = torch.zeros(64, CLASSES, device=device)

    def work() -> None:
        with torch.no_grad():
            scores.copy_(model(inputs))

    captured = Captured(work, device)
    generator = torch.Generator(device).manual_seed(6)
    for _ in range(5):
        inputs.copy_(torch.randn(inputs.shape, device=device, generator=generator))
        captured()
        with torch.no_grad():
            torch.testing.assert_close(scores, model(inputs), rtol=0, atol=1e-3)
    assert captured.is_recorded
