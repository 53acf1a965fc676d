"""Which arithmetic torch uses for convolutions and matrix products on a GPU, and setting it for one product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

FLOAT32 = "float32"
TF32 = "tf32"


def convolutions_in_tf32() -> bool | None:
    """Whether torch runs float32 convolutions in TF32 on a GPU; None where its settings contradict each other."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch refuses to answer after its older and its newer settings were mixed
        return None


def products_in_tf32() -> bool | None:
    """The same for matrix products."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return None


def arithmetic_of(model: nn.Module, device: torch.device) -> str:
    """``tf32`` where torch would run a layer of ``model`` in it (or does not say), else ``float32``."""
    if device.type != "cuda":
        return FLOAT32
    convolutions = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in model.modules())
    used = (convolutions_in_tf32() is not False and convolutions) or products_in_tf32() is not False
    return TF32 if used else FLOAT32


@contextmanager
def like_convolutions(device: torch.device) -> Iterator[None]:
    """Matrix products inside stand for a convolution's: on a GPU they run in TF32 where torch lets convolutions do so."""
    if device.type != "cuda" or not convolutions_in_tf32() or products_in_tf32() is not False:
        yield
        return
    with matrix_products(True):
        yield


@contextmanager
def matrix_products(tf32: bool) -> Iterator[None]:
    """Matrix products inside run with or without TF32; the setting of torch is left as it was found."""
    before = torch.backends.cuda.matmul.allow_tf32
    if before == tf32:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
