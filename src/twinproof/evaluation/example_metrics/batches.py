"""How many examples are measured together: only speed and memory depend on it.

A power iteration is thousands of small operations. A GPU takes some ten microseconds to start each of them, however few rows it
is for: there a batch is as large as a share of the free memory allows. On a CPU larger batches win nothing and take memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from twinproof.evaluation.example_metrics.subject import device_of

ON_CPU = 256
MOST = 16_384
"""On a GPU; with so many rows of the smallest network, starting an operation takes less time than computing it."""
# What one measurement may take of the memory that is free: up to 16 models are measured on one GPU at a time.
_SHARE = 1 / 16
# A Hessian's graph holds up to three and a half times what a forward pass keeps, and a product has intermediate results too.
_GRAPHS = 8
# Vectors, images and slopes in float64 that live at the same time.
_VECTORS = 12
_FLOAT64 = 8


def rows_at_once(model: nn.Module, inputs: Tensor, device: torch.device, asked: int | None) -> int:
    """As many as ``asked`` for; None leaves it to the device that ``model`` lies on.

    On a GPU that follows the memory that is free, and with it the last digits of what is measured.
    """
    if asked is not None:
        return asked
    if device.type != "cuda":
        return ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    return rows_that_fit(free, bytes_of_row(model, inputs[:1]))


def rows_that_fit(free: int, each: int) -> int:
    """How many rows of ``each`` bytes a fair share of ``free`` bytes holds; at least 1, at most ``MOST``."""
    return max(1, min(MOST, int(_SHARE * free / max(1, each))))


def bytes_of_row(model: nn.Module, row: Tensor) -> int:
    """What measuring one more example takes at most, about, from what a forward pass of ``row`` (1, *shape) keeps."""
    here = row.detach().to(device_of(model, row))
    few, more = (_kept_bytes(model, torch.cat([here] * count)) for count in (1, 3))
    return _GRAPHS * max(0, more - few) // 2 + _VECTORS * _FLOAT64 * row.numel()


def in_batches(examples: int, batch_size: int) -> Iterator[slice]:
    """Consecutive rows, ``batch_size`` at a time."""
    return (slice(start, min(start + batch_size, examples)) for start in range(0, examples, batch_size))


def _kept_bytes(model: nn.Module, rows: Tensor) -> int:
    """Bytes that autograd keeps of a forward pass, every storage once; weights among them, whatever the number of rows."""
    kept: dict[int, Tensor] = {}  # the tensors too: the place of one that is gone could be that of the next

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        model(rows.requires_grad_())
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
