"""The Triton kernel against torch: on a GPU, or on a CPU where Triton interprets it (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)

from twinproof.certification.layer_kernels import fits, normed  # noqa: E402

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# (rows, channels, height, width, groups): the house network's maps, odd sizes, groups that fill no power of two, one group.
SHAPES = [
    (3, 32, 14, 14, 8),
    (2, 64, 7, 7, 8),
    (2, 128, 4, 4, 8),
    (2, 6, 5, 3, 3),
    (1, 24, 5, 5, 8),
    (2, 9, 3, 3, 3),
    (2, 5, 2, 2, 1),
]


def maps(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, channels, height, width, _ = shape
    values = 1 + 3 * torch.randn(rows, channels, height, width, generator=generator)
    scale, shift = torch.randn(2, channels, generator=generator)
    return values.to(DEVICE), scale.to(DEVICE), shift.to(DEVICE)


def of_torch(values: Tensor, groups: int, scale: Tensor, shift: Tensor, gelu: bool) -> Tensor:
    wanted = F.group_norm(values, groups, scale, shift, 1e-5)
    return F.gelu(wanted) if gelu else wanted.relu()


def of_kernel(values: Tensor, groups: int, scale: Tensor, shift: Tensor, gelu: bool) -> Tensor:
    inner = values.permute(0, 2, 3, 1).contiguous()
    return normed(inner, groups, scale, shift, 1e-5, gelu=gelu).permute(0, 3, 1, 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gelu", [False, True])
def test_equals_torch(shape: tuple[int, ...], gelu: bool) -> None:
    values, scale, shift = maps(shape)
    got, wanted = (work(values, shape[-1], scale, shift, gelu) for work in (of_kernel, of_torch))
    assert float((got - wanted).abs().max()) < 1e-5


def test_nan_stays_in_its_group() -> None:
    values, scale, shift = maps(SHAPES[1])
    values[0, 0, 3, 3] = float("nan")
    got = of_kernel(values, 8, scale, shift, True)
    assert bool(got[0, :8].isnan().all())
    assert not bool(got[0, 8:].isnan().any() | got[1].isnan().any())


def test_groups_that_are_too_large_do_not_fit() -> None:
    assert fits(196, 4)
    assert fits(1024, 16)
    assert not fits(1025, 16)
