"""The same promises on a GPU: right, independent of the other records to the bit, and the same each time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.layers.networks import build_network
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.gradients import Instantiated, kernels_serve, row_squares
from twinproof.training.per_example.paths import PerExamplePath

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


def test_norms_by_kernels_are_never_too_small() -> None:
    """Rows longer than one program's part, against sums of 64-bit mantissas; a norm without its margin falls below."""
    values = torch.randn(33, 70_001, generator=torch.Generator().manual_seed(3))
    gradient = Instantiated(values.cuda())
    assert kernels_serve(gradient.values)
    found = gradient.squared_norms().cpu().numpy()
    exact = (values.numpy().astype(np.longdouble) ** 2).sum(1)
    assert (found >= exact).all()
    assert (found <= exact * (1 + 1e-9)).all()
    bare = row_squares(gradient.values).cpu().numpy()
    assert (bare < exact).any(), "without the margin some norm is too small"


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 30), (300, 1025), (40, 400_000)])
def test_sums_by_kernels_leave_out_records_of_weight_zero(rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(4)
    values, weights = torch.randn(rows, width, generator=generator), torch.rand(rows, generator=generator, dtype=torch.float64)
    weights[1::3] = 0
    wanted = weights @ values.double()
    values[1::3] = float("nan")
    found = Instantiated(values.cuda()).weighted_sum(weights.cuda()).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_small_gradients_put_together_change_nothing() -> None:
    model = network()
    inputs, labels = records(20, 1)
    gradients = FastPath(model, mean_cross_entropy).gradients(inputs, labels)
    weights = torch.linspace(0, 1, 20, dtype=torch.float64).cuda()
    together, apart = (
        gradients.weighted_sums(weights),
        {name: value.weighted_sum(weights) for name, value in gradients.by_name.items()},
    )
    assert together.keys() == apart.keys()
    for name, value in apart.items():
        torch.testing.assert_close(together[name], value, rtol=1e-12, atol=1e-14)
    alone = sum(value.squared_norms() for value in gradients.by_name.values())
    torch.testing.assert_close(gradients.squared_norms(), alone, rtol=1e-10, atol=0)


def test_a_convolution_is_as_precise_as_torch_runs_it() -> None:
    """With TF32 switched off for convolutions, per-example gradients do not use it either; torch's settings stay."""
    model = network()
    inputs, labels = records(8, 1)
    exact = FastPath(copy.deepcopy(model).double(), mean_cross_entropy).gradients(inputs.double(), labels).by_name
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    errors = {}
    try:
        for allowed in (True, False):
            torch.backends.cudnn.allow_tf32 = allowed
            found = FastPath(model, mean_cross_entropy).gradients(inputs, labels).by_name
            name = "3.weight"
            wanted = exact[name].instantiate()
            errors[allowed] = float((found[name].instantiate().double() - wanted).norm() / wanted.norm())
            assert torch.backends.cuda.matmul.allow_tf32 == before[1]
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    assert errors[False] < 1e-5 < errors[True] < 1e-2
