"""Comparing tensors bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from twinproof.training.per_example.path import RecordGradients

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SEED = 20_261_117
_MOST_AT_ONCE = 1 << 22


def bits(value: Tensor) -> Tensor:
    """The same memory read as integers, so that NaN equals NaN and 0.0 differs from -0.0."""
    detached = value.detach()
    if detached.is_complex():
        detached = torch.view_as_real(detached)
    if detached.dtype == torch.bool:
        return detached.to(torch.uint8)
    return detached.contiguous().view(_INTEGERS[detached.element_size()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name; one that has two names has both."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def row_digests(gradients: RecordGradients) -> dict[str, Tensor]:
    """One number (m,) for each parameter and record that changes with every bit of that gradient.

    Zeros of both signs count as one, and so do all NaN: neither makes a difference to a sum of finite gradients.
    """
    return {name: _digest(value.instantiate()) for name, value in gradients.by_name.items()}


def _digest(values: Tensor) -> Tensor:
    flat = values.detach().reshape(values.shape[0], -1)
    columns = max(1, _MOST_AT_ONCE // max(1, flat.shape[0]))
    total = torch.zeros(flat.shape[0], dtype=torch.int64, device=flat.device)
    generator = torch.Generator().manual_seed(_SEED)
    for block in torch.split(flat, columns, dim=1):
        plain = torch.where(block.isnan(), torch.nan, block + 0.0)
        weights = torch.randint(-(2**62), 2**62, (block.shape[1],), generator=generator) * 2 + 1
        total += (bits(plain).to(torch.int64) * weights.to(flat.device)).sum(1)
    return total


def first_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor], rows: Tensor | Sequence[int]) -> str:
    """The parameter and row at which two tables of digests differ; empty if nowhere among ``rows``."""
    for name, digests in one.items():
        differing = (digests != other[name])[rows].nonzero()
        if len(differing):
            return f"{name} in {len(differing)} of {len(rows)} rows"
    return ""
