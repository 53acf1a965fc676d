"""The faster forms are the user's network: same scores, nothing of the user's changed, and nothing used that differs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification import fast_layers, lowering
from twinproof.certification.grid_noise import input_noise
from twinproof.certification.lowering import (
    AS_GIVEN,
    CHANNELS_LAST,
    DENSE,
    Lowered,
    layers_in_order,
    lowered,
    shapes_before,
    with_dense_convolutions,
)
from twinproof.certification.shared_noise import SharedNetwork, SharedNoiseCounter, shared_network
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.networks import NETWORKS, build_network

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")
CPU = torch.device("cpu")
IMAGES = (1, 28, 28)


def network(name: str = "tramer-boneh-cnn", shape: tuple[int, ...] = IMAGES) -> nn.Module:
    torch.manual_seed(0)
    return build_network(name, shape, 10)


def batch(shape: tuple[int, ...] = IMAGES, rows: int = 9) -> Tensor:
    return 9 * torch.rand((rows, *shape), generator=torch.Generator().manual_seed(3)) - 4


def difference(one: nn.Module, other: nn.Module, inputs: Tensor) -> float:
    with torch.inference_mode():
        return float((one(inputs) - other(inputs)).abs().max())


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_of_the_registry_keeps_its_scores(name: str) -> None:
    shape = (3, 16, 16) if name in ("wrn-16-4", "resnet-18", "small-vit") else IMAGES
    model = network(name, shape)
    for form in (None, CHANNELS_LAST, AS_GIVEN):
        made = lowered(model, shape, CPU, 4, form=form)
        assert made.arithmetic == "float32"
        assert made.form in (form,) if form else made.form in (AS_GIVEN, CHANNELS_LAST)
        assert difference(made, model.eval(), batch(shape, 3)) < 1e-5


SMALL: dict[str, Callable[[], nn.Module]] = {
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    ),
    "tanh first": lambda: nn.Sequential(nn.Tanh(), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 4)),
    "relu first": lambda: nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)),
    "group norm": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4)),
    "batch norm": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)),
    "unflattened": lambda: nn.Sequential(nn.Conv2d(2, 4, 8), nn.Flatten(2), nn.Flatten(), nn.Linear(4, 4)),
    "no bias": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4, bias=False)),
    "one activation twice": lambda: twice(),
}


def twice() -> nn.Module:
    tanh = nn.Tanh()
    return nn.Sequential(tanh, nn.Conv2d(2, 4, 3), tanh, nn.Flatten(), nn.Linear(144, 4), tanh)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dense", [False, True])
def test_small_networks_keep_their_scores_and_inputs(name: str, dense: bool) -> None:
    torch.manual_seed(1)
    model, inputs = SMALL[name]().eval(), batch((2, 8, 8))
    before = inputs.clone()
    if dense:
        layers = layers_in_order(model)
        made: nn.Module | None = with_dense_convolutions(layers, shapes_before(layers, inputs[:1]))
        if made is None:
            assert not any(isinstance(layer, nn.Conv2d) for layer in layers)
            return
    else:
        made = lowered(model, (2, 8, 8), CPU, 9, form=CHANNELS_LAST)
    assert difference(made, model, inputs) < 1e-5
    assert torch.equal(inputs, before)


def test_only_an_input_that_was_given_up_is_overwritten() -> None:
    """With one channel the maps in channels-last memory are a view of the input."""
    torch.manual_seed(1)
    model, inputs = nn.Sequential(nn.Tanh(), nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 4)).eval(), batch((1, 8, 8))
    wanted, before = model(inputs), inputs.clone()
    for overwrite in (False, True):
        made = lowered(model, (1, 8, 8), CPU, 9, form=CHANNELS_LAST, overwrite=overwrite)
        given = inputs.clone()
        with torch.inference_mode():
            assert float((made(given) - wanted).abs().max()) < 1e-5
        assert torch.equal(given, before) != overwrite


def test_the_network_of_the_papers_gets_the_faster_forms() -> None:
    made = lowered(network(), IMAGES, CPU, 500, form=CHANNELS_LAST)
    kinds = [type(layer).__name__ for layer in layers_in_order(made.network)]
    assert kinds == ["ChannelsLast", *("Conv2d", "NumpyTanh", "SlicedMaxPool") * 2, "LinearOfMaps", "NumpyTanh", "Linear"]
    layers = layers_in_order(network())
    dense = with_dense_convolutions(layers, shapes_before(layers, batch()[:1]))
    assert dense is not None
    kinds = [type(layer).__name__ for layer in dense]
    assert kinds == [*("DenseConvolution", "ActivationPool") * 2, "LinearOfMaps", "Tanh", "Linear"]
    assert difference(dense, network().eval(), batch()) < 1e-5


def test_norms_and_activations_of_the_house_network_become_one_layer() -> None:
    layers = layers_in_order(network("gelu-cnn").eval())
    made = with_dense_convolutions(layers, shapes_before(layers, batch()[:1]))
    assert made is not None
    assert [type(layer).__name__ for layer in made] == [*("DenseConvolution", "NormActivation") * 3, "LinearOfMaps"]
    assert difference(made, network("gelu-cnn").eval(), batch()) < 1e-5


@pytest.mark.parametrize(
    "pair",
    [
        (nn.GroupNorm(1, 3, affine=False), nn.GELU()),
        (nn.GroupNorm(1, 3), nn.GELU(approximate="tanh")),
        (nn.GroupNorm(1, 3), nn.Tanh()),
        (nn.BatchNorm2d(3), nn.GELU()),
    ],
    ids=str,
)
def test_other_norms_and_activations_stay_as_they_are(pair: tuple[nn.Module, nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), *pair, nn.Flatten(), nn.Linear(3 * 26 * 26, 4)).eval()
    layers = layers_in_order(model)
    made = with_dense_convolutions(layers, shapes_before(layers, batch()[:1]))
    assert made is not None
    assert not any(type(layer).__name__ == "NormActivation" for layer in made)
    assert difference(made, model, batch()) < 1e-5


def test_the_users_model_and_settings_are_not_touched() -> None:
    model = network().train()
    model[2].eval()  # type: ignore[index]  # a layer that its owner froze
    state = {name: (value.clone(), value.stride()) for name, value in model.state_dict().items()}
    modes, threads, generator = [module.training for module in model.modules()], torch.get_num_threads(), torch.get_rng_state()
    made = lowered(model, IMAGES, CPU, 100)
    assert not any(module.training for module in made.modules())
    assert [module.training for module in model.modules()] == modes
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name][0])
        assert value.stride() == state[name][1]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert float(made(batch()).abs().max()) > 0, "the form shares weights with the model"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_the_same_form_gives_the_same_bits(device: str) -> None:
    model, inputs = network().eval().to(device), batch(rows=300).to(device)
    first = lowered(model, IMAGES, inputs.device, 300)
    again = lowered(model, IMAGES, inputs.device, 7, form=first.form)
    assert again.form == first.form
    with torch.inference_mode():
        assert torch.equal(first(inputs), again(inputs))


def test_pieces_are_put_together_in_order() -> None:
    made = lowered(network(), IMAGES, CPU, 300, form=CHANNELS_LAST)
    assert made.piece is not None
    inputs = batch(rows=2 * made.piece + 5)
    assert difference(made, network().eval(), inputs) < 1e-5
    assert made(inputs[:0]).shape == (0, 10)


def test_nan_reaches_the_scores_of_its_row_alone() -> None:
    inputs = batch()
    inputs[4, 0, 10, 10] = float("nan")
    scores = lowered(network(), IMAGES, CPU, 9, form=CHANNELS_LAST)(inputs)
    assert scores.isnan().any(dim=1).tolist() == [row == 4 for row in range(9)]


def _forgetful_flatten(layer: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.linear(x.flatten(1), layer.weight, layer.bias)  # type: ignore[arg-type]


def _cubic(layer: nn.Module, x: Tensor) -> Tensor:
    return x - x**3 / 3


def _without_columns(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.maximum(x[:, :, :-1, :-1], x[:, :, 1:, :-1])


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (lowering.LinearOfMaps, _forgetful_flatten),
        (lowering.NumpyTanh, _cubic),
        (fast_layers.SlicedMaxPool, _without_columns),
    ],
)
def test_planted_wrong_layers_are_not_used(
    kind: type[nn.Module], wrong: Callable[[nn.Module, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "forward", wrong)
    model = network()
    assert lowered(model, IMAGES, CPU, 50).form == AS_GIVEN
    with pytest.raises(ConfigError, match="does not have that form"):
        lowered(model, IMAGES, CPU, 50, form=CHANNELS_LAST)


class Random(nn.Module):
    """Another answer each time."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Uncopied(nn.Module):
    """Holds something that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return x


def _hooked() -> nn.Module:
    model = network()
    model[0].register_forward_hook(lambda layer, given, made: 2 * made)  # type: ignore[index]
    return model


def _replaced() -> nn.Module:
    model = network()
    model[1].forward = torch.sin  # type: ignore[index]
    return model


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "hook": _hooked,
    "replaced method": _replaced,
    "random": lambda: nn.Sequential(network(), Random()),
    "not copied": lambda: nn.Sequential(network(), Uncopied()),
    "in place on its input": lambda: nn.Sequential(nn.ReLU(inplace=True), network()),
    "not finite": lambda: nn.Sequential(network(), nn.Threshold(1e9, float("nan"))),
    "empty": nn.Sequential,
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_networks_run_as_given(name: str) -> None:
    model = UNUSUAL[name]()
    made = lowered(model, IMAGES, CPU, 50)
    assert made.form == AS_GIVEN
    if name != "random":
        assert torch.equal(made(batch()).nan_to_num(), model.eval()(batch()).nan_to_num())


def test_double_precision_runs_as_given() -> None:
    model = network().double()
    made = lowered(model, IMAGES, CPU, 50)
    assert made.form == AS_GIVEN
    assert made(batch().double()).dtype == torch.float64


@pytest.mark.parametrize("form", ["dense convolutions", "no such form"])
def test_a_form_that_the_network_does_not_have_is_refused(form: str) -> None:
    with pytest.raises(ConfigError, match="does not have that form"):
        lowered(network(), IMAGES, CPU, 50, form=form)


@pytest.mark.parametrize(("share", "form"), [(0.5, CHANNELS_LAST), (0.95, AS_GIVEN), (2.0, AS_GIVEN)])
def test_the_faster_form_is_taken_where_it_is_worth_it(share: float, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(made: Lowered, inputs: Tensor, repeats: int = 1) -> float:
        return 1e-3 * (share if made.form == CHANNELS_LAST else 1)

    monkeypatch.setattr(lowering, "_seconds", seconds)
    assert lowered(network(), IMAGES, CPU, 50).form == form


GPU = torch.device("cuda")
NOISE, KEY = input_noise(0.5, 255), Key.from_seed(3)


@on_gpu
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_of_the_registry_keeps_its_scores_gpu(name: str) -> None:
    shape = (3, 16, 16) if name in ("wrn-16-4", "resnet-18", "small-vit") else IMAGES
    model = network(name, shape).eval().cuda()
    made = lowered(model, shape, GPU, 1000)
    with torch.inference_mode():
        wanted = model(batch(shape, 64).cuda())
        assert float((made(batch(shape, 64).cuda()) - wanted).abs().max()) <= 5e-3 * float(wanted.abs().max())


@on_gpu
@pytest.mark.parametrize("tf32", [False, True])
def test_dense_convolutions_use_the_precision_of_convolutions_and_leave_the_setting(tf32: bool) -> None:
    model, double = network().eval().cuda(), network().eval().double().cuda()
    before = torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32), torch.inference_mode():
        made = lowered(model, IMAGES, GPU, 4096, form=DENSE)
        error = float((made(batch(rows=64).cuda()) - double(batch(rows=64).cuda().double())).abs().max())
    assert made.arithmetic == ("tf32" if tf32 or before else "float32")
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert error < (5e-3 if tf32 else 2e-5)


@on_gpu
@pytest.mark.parametrize("name", ["tramer-boneh-cnn", "gelu-cnn"])
def test_networks_get_dense_convolutions_where_these_are_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(made: Lowered, inputs: Tensor, repeats: int = 1) -> float:
        return 0.5 if made.form == DENSE else 1.0

    monkeypatch.setattr(lowering, "_seconds", seconds)
    assert lowered(network(name).eval().cuda(), IMAGES, GPU, 65_536).form == DENSE


@on_gpu
def test_the_house_network_with_dense_convolutions_keeps_its_scores() -> None:
    model, inputs = network("gelu-cnn").eval().cuda(), batch(rows=3000).cuda()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), torch.inference_mode():
        wanted, got = model(inputs), lowered(model, IMAGES, GPU, 3000, form=DENSE)(inputs)
    assert float((got - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def cut(device: torch.device, form: str | None = None) -> SharedNetwork:
    return shared_network(network().eval().to(device), IMAGES, NOISE, device, 65_536, form=form)


def stored(count: int) -> Tensor:
    return torch.randint(0, 256, (count, *IMAGES), generator=torch.Generator().manual_seed(2)).float()


@on_gpu
def test_the_first_layer_is_exact_and_the_same_as_on_the_cpu() -> None:
    inputs, drawn = stored(40), NOISE.draws(KEY, "x", 0, 0, 40, math.prod(IMAGES), CPU).view(-1, *IMAGES)
    here, there = cut(GPU).first, cut(CPU).first
    with torch.inference_mode():
        assert torch.equal(here.of_inputs(inputs.cuda()) + here.of_noise(drawn.cuda()), here.of_inputs((inputs + drawn).cuda()))
        assert torch.equal(here.of_inputs(inputs.cuda()).cpu(), there.of_inputs(inputs))
        assert torch.equal(here.of_noise(drawn.cuda()).cpu(), there.of_noise(drawn))


@on_gpu
@pytest.mark.parametrize("form", [AS_GIVEN, DENSE])
def test_votes_are_those_of_the_cpu_but_for_rounding(form: str) -> None:
    inputs, draws = stored(6), 3000
    with torch.inference_mode():
        here = SharedNoiseCounter(cut(GPU, form), NOISE, KEY, 65_536).count("estimate", list(range(6)), inputs.cuda(), draws)
        there = SharedNoiseCounter(cut(CPU), NOISE, KEY, 1000).count("estimate", list(range(6)), inputs, draws)
    assert here.sum(dim=1).tolist() == [draws] * 6
    assert int((here.cpu() - there).abs().sum()) <= 2 * 6 * draws // 50  # TF32 turns close votes
