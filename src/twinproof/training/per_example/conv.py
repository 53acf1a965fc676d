"""Convolutions of one, two and three dimensions: a linear layer over patches.

Patches are a strided view of the padded input, copied once into the order that the matrix product needs. ``unfold`` of torch
is not used: it knows only two dimensions and runs over the batch one by one on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.layers.precision import like_convolutions
from twinproof.training.per_example.gradients import Instantiated, LinearFactors, PerExampleGradient, Rearranged
from twinproof.training.per_example.linear import factors_are_cheaper
from twinproof.training.per_example.registry import Call, bias_gradient, handles, joined, trainable
from twinproof.training.per_example.scratch import SCRATCH

# Elements of patches formed at a time: one MiB of float32 on a CPU, inside a second-level cache; 128 MiB on a GPU.
_BLOCK_ELEMENTS = {"cpu": 1 << 18, "other": 1 << 25}

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@handles(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: Convolution, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Weight and bias, for any stride, padding and its mode, dilation, groups and memory layout."""
    found: dict[str, PerExampleGradient] = {}
    own = trainable(layer)
    if "weight" in own:
        found["weight"] = _weight_gradient(layer, calls, records)
    if "bias" in own:
        copies = calls[0].errors.shape[0] // records
        shape = (records, copies, layer.out_channels, -1)
        found["bias"] = bias_gradient(own["bias"], calls, records, lambda errors: errors.reshape(shape).sum((1, 3)))
    return found


def _weight_gradient(layer: Convolution, calls: Sequence[Call], records: int) -> PerExampleGradient:
    views = [patches(layer, call.inputs) for call in calls]
    # The copy follows the memory: with channels innermost it moves runs of channels, otherwise runs of the kernel's last axis.
    channels_inner = all(view.stride(1) <= view.stride(-1) for view in views)
    in_shape = (layer.in_channels // layer.groups, *layer.kernel_size)
    axes = tuple(range(len(in_shape) + 1))
    if channels_inner:
        in_shape, axes = (*in_shape[1:], in_shape[0]), (0, axes[-1], *axes[1:-1])

    def factors(start: int, stop: int, memory: Tensor) -> LinearFactors:
        """The factors of some records, each group of channels as a record of its own; the patches are put into ``memory``."""
        features = memory[: (stop - start) * layer.groups]
        first = 0
        for view in views:
            ordered = _ordered(layer, _records(view, records, start, stop), channels_inner)
            last = first + math.prod(ordered.shape[2 : 3 + len(layer.kernel_size)])
            features[:, first:last].view(ordered.shape).copy_(ordered)
            first = last
        errors = [_errors(layer, _records(call.errors, records, start, stop)) for call in calls]
        return LinearFactors(features, joined(errors))

    positions = sum(math.prod(view.shape[: -len(layer.kernel_size)]) // layer.in_channels for view in views) // records
    if layer.groups == 1 and factors_are_cheaper(positions, math.prod(in_shape), layer.out_channels, layer.weight.device.type):
        inner: PerExampleGradient = factors(0, records, _patch_memory(layer, calls, records, positions))
    else:
        inner = Instantiated(_products(layer, calls, factors, records, positions))
    return Rearranged(inner, (layer.out_channels, *in_shape), axes)


def _products(
    layer: Convolution,
    calls: Sequence[Call],
    factors: Callable[[int, int, Tensor], LinearFactors],
    records: int,
    positions: int,
) -> Tensor:
    """The gradients (m, out channels, features), some records at a time.

    On a CPU the patches of a block then stay in the cache between being copied and being read; nowhere do those of a whole
    large batch take memory.
    """
    size = layer.weight.numel() // layer.out_channels
    values = SCRATCH.empty((records, layer.out_channels, size), layer.weight)
    patch_elements = max(1, positions * size * layer.groups)
    step = min(records, max(1, _BLOCK_ELEMENTS["cpu" if values.device.type == "cpu" else "other"] // patch_elements))
    memory = _patch_memory(layer, calls, step, positions)
    for start in range(0, records, step):
        stop = min(start + step, records)
        block = factors(start, stop, memory)
        out = values[start:stop].view(-1, layer.out_channels // layer.groups, size)
        with like_convolutions(values.device):
            torch.bmm(block.errors.transpose(1, 2), block.inputs, out=out)
    return values


def _patch_memory(layer: Convolution, calls: Sequence[Call], records: int, positions: int) -> Tensor:
    """Room for the patches of some records: (records * groups, T, features)."""
    features = layer.weight.numel() // layer.out_channels
    return SCRATCH.empty((records * layer.groups, positions, features), calls[0].inputs)


def patches(layer: Convolution, inputs: Tensor) -> Tensor:
    """A view (N, channels, *positions, *kernel) of the padded inputs: what each output position is computed from."""
    padded = _padded(layer, inputs)
    sizes, strides = padded.shape[2:], padded.stride()[2:]
    positions = [
        (size - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, dilation in zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ]
    steps = [memory * stride for memory, stride in zip(strides, layer.stride, strict=True)]
    inner_steps = [memory * dilation for memory, dilation in zip(strides, layer.dilation, strict=True)]
    return padded.as_strided(
        (*padded.shape[:2], *positions, *layer.kernel_size),
        (*padded.stride()[:2], *steps, *inner_steps),
        padded.storage_offset(),
    )


def _padded(layer: Convolution, inputs: Tensor) -> Tensor:
    """The inputs with the layer's own padding around them."""
    if layer.padding == "valid":
        return inputs
    if layer.padding == "same":  # an odd total has its extra element at the end
        totals = [dilation * (kernel - 1) for kernel, dilation in zip(layer.kernel_size, layer.dilation, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(int(size), int(size)) for size in layer.padding]
    if not any(size for pair in pairs for size in pair):
        return inputs
    amounts = [size for pair in reversed(pairs) for size in pair]  # torch wants the last axis first
    return functional.pad(inputs, amounts, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def _records(values: Tensor, records: int, start: int, stop: int) -> Tensor:
    """Records ``start`` to ``stop`` of rows that hold all copies: (records, copies, ...)."""
    copies = values.shape[0] // records
    return values[start * copies : stop * copies].view(stop - start, copies, *values.shape[1:])


def _ordered(layer: Convolution, view: Tensor, channels_inner: bool) -> Tensor:
    """Patches (m, copies, channels, *positions, *kernel) as a view (m, groups, copies, *positions, *features)."""
    dims, groups = len(layer.kernel_size), layer.groups
    channels = layer.in_channels // groups
    split = view.view(*view.shape[:2], groups, channels, *view.shape[3:])
    spots = range(4, 4 + dims)
    kernel = range(4 + dims, 4 + 2 * dims)
    inner = (*kernel, 3) if channels_inner else (3, *kernel)
    return split.permute(0, 2, 1, *spots, *inner)


def _errors(layer: Convolution, errors: Tensor) -> Tensor:
    """Errors (m, copies, channels, *positions) as (m * groups, copies * positions, out channels of a group)."""
    width = layer.out_channels // layer.groups
    split = errors.reshape(*errors.shape[:2], layer.groups, width, -1)
    return split.permute(0, 2, 1, 4, 3).reshape(errors.shape[0] * layer.groups, -1, width)
