"""The faster forms and shared noise on a GPU: same scores, exact sums, and the draws of the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification import lowering
from twinproof.certification.grid_noise import input_noise
from twinproof.certification.lowering import AS_GIVEN, DENSE, Lowered, lowered
from twinproof.certification.shared_noise import SharedNetwork, SharedNoiseCounter, shared_network
from twinproof.keys import Key
from twinproof.layers.networks import NETWORKS, build_network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")

GPU, CPU = torch.device("cuda"), torch.device("cpu")
IMAGES = (1, 28, 28)
NOISE, KEY = input_noise(0.5, 255), Key.from_seed(3)


def network(name: str = "tramer-boneh-cnn", shape: tuple[int, ...] = IMAGES) -> nn.Module:
    torch.manual_seed(0)
    return build_network(name, shape, 10).eval()


def batch(shape: tuple[int, ...], rows: int = 64) -> Tensor:
    return (9 * torch.rand((rows, *shape), generator=torch.Generator().manual_seed(1)) - 4).cuda()


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_of_the_registry_keeps_its_scores(name: str) -> None:
    shape = (3, 16, 16) if name in ("wrn-16-4", "resnet-18", "small-vit") else IMAGES
    model = network(name, shape).cuda()
    made = lowered(model, shape, GPU, 1000)
    with torch.inference_mode():
        wanted = model(batch(shape))
        assert float((made(batch(shape)) - wanted).abs().max()) <= 5e-3 * float(wanted.abs().max())


@pytest.mark.parametrize("tf32", [False, True])
def test_dense_convolutions_use_the_precision_of_convolutions_and_leave_the_setting(tf32: bool) -> None:
    model, double = network().cuda(), network().double().cuda()
    before = torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32), torch.inference_mode():
        made = lowered(model, IMAGES, GPU, 4096, form=DENSE)
        error = float((made(batch(IMAGES)) - double(batch(IMAGES).double())).abs().max())
    assert made.arithmetic == ("tf32" if tf32 or before else "float32")
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert error < (5e-3 if tf32 else 2e-5)


@pytest.mark.parametrize("name", ["tramer-boneh-cnn", "gelu-cnn"])
def test_networks_get_dense_convolutions_where_these_are_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(made: Lowered, inputs: Tensor, repeats: int = 1) -> float:
        return 0.5 if made.form == DENSE else 1.0

    monkeypatch.setattr(lowering, "_seconds", seconds)
    assert lowered(network(name).cuda(), IMAGES, GPU, 65_536).form == DENSE


def test_the_house_network_with_dense_convolutions_keeps_its_scores() -> None:
    model, inputs = network("gelu-cnn").cuda(), batch(IMAGES, 3000)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), torch.inference_mode():
        wanted, got = model(inputs), lowered(model, IMAGES, GPU, 3000, form=DENSE)(inputs)
    assert float((got - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def test_the_same_form_gives_the_same_bits() -> None:
    model, inputs = network().cuda(), batch(IMAGES, 3000)
    with torch.inference_mode():
        first, again = (lowered(model, IMAGES, GPU, 3000, form=DENSE)(inputs) for _ in range(2))
    assert torch.equal(first, again)


def cut(device: torch.device, form: str | None = None) -> SharedNetwork:
    return shared_network(network().to(device), IMAGES, NOISE, device, 65_536, form=form)


def stored(count: int) -> Tensor:
    return torch.randint(0, 256, (count, *IMAGES), generator=torch.Generator().manual_seed(2)).float()


def test_the_first_layer_is_exact_and_the_same_as_on_the_cpu() -> None:
    inputs, drawn = stored(40), NOISE.draws(KEY, "x", 0, 0, 40, math.prod(IMAGES), CPU).view(-1, *IMAGES)
    here, there = cut(GPU).first, cut(CPU).first
    with torch.inference_mode():
        assert torch.equal(here.of_inputs(inputs.cuda()) + here.of_noise(drawn.cuda()), here.of_inputs((inputs + drawn).cuda()))
        assert torch.equal(here.of_inputs(inputs.cuda()).cpu(), there.of_inputs(inputs))
        assert torch.equal(here.of_noise(drawn.cuda()).cpu(), there.of_noise(drawn))


@pytest.mark.parametrize("form", [AS_GIVEN, DENSE])
def test_votes_are_those_of_the_cpu_but_for_rounding(form: str) -> None:
    inputs, draws = stored(6), 3000
    with torch.inference_mode():
        here = SharedNoiseCounter(cut(GPU, form), NOISE, KEY, 65_536).count("estimate", list(range(6)), inputs.cuda(), draws)
        there = SharedNoiseCounter(cut(CPU), NOISE, KEY, 1000).count("estimate", list(range(6)), inputs, draws)
    assert here.sum(dim=1).tolist() == [draws] * 6
    assert int((here.cpu() - there).abs().sum()) <= 2 * 6 * draws // 50  # TF32 turns close votes
