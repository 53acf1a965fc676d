"""The same promises on a GPU: right, independent of the other records to the bit, and the same each time."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from twinproof.layers.models.registry import build_network
from twinproof.training.loss import mean_cross_entropy
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.path import PerExamplePath

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")

SHAPE, CLASSES = (1, 28, 28), 10


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return build_network("tramer-boneh-cnn", SHAPE, CLASSES).to("cuda", dtype)


def records(count: int, copies: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand((count, copies, *SHAPE), generator=generator, dtype=torch.float64).to("cuda", dtype)
    return inputs, torch.randint(0, CLASSES, (count,), generator=generator).cuda()


def bits(path: PerExamplePath, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {name: value.instantiate()[0].clone() for name, value in path.gradients(inputs, labels).by_name.items()}


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", ["auto", "vmap"])
def test_one_record_keeps_every_bit_beside_any_others(copies: int, name: str) -> None:
    path = choose_path(network(), mean_cross_entropy, SHAPE, CLASSES, copies=copies, path="auto" if name == "auto" else "vmap")
    inputs, labels = records(64, copies)
    first = bits(path, inputs, labels)
    for value in (float("nan"), 1e30, 0.25):
        others = inputs.clone()
        others[1:] = value
        second = bits(path, others, labels.roll(1).index_copy(0, torch.tensor([0]).cuda(), labels[:1]))
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_the_fast_path_is_chosen(copies: int) -> None:
    path = choose_path(network(), mean_cross_entropy, SHAPE, CLASSES, copies=copies)
    assert isinstance(path, FastPath), getattr(path, "reason", "")


@pytest.mark.parametrize("copies", [1, 3])
def test_equals_the_cpu_in_float64(copies: int) -> None:
    model = network(torch.float64)
    inputs, labels = records(7, copies, torch.float64)
    on_gpu = FastPath(model, mean_cross_entropy).gradients(inputs, labels).by_name
    on_cpu = FastPath(copy.deepcopy(model).cpu(), mean_cross_entropy).gradients(inputs.cpu(), labels.cpu()).by_name
    for name, value in on_cpu.items():
        wanted = value.instantiate()
        assert float((on_gpu[name].instantiate().cpu() - wanted).abs().max()) <= 1e-10 * float(wanted.abs().max())
