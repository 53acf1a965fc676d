"""Per-example gradients of linear layers, convolutions, embeddings and normalisations.

Patches are a strided view of the padded input, copied once into the order that the matrix product needs. ``unfold`` of torch
is not used: it knows only two dimensions and runs over the batch one by one on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.compute.devices import like_convolutions
from twinproof.layers.noise import LearnedSpread
from twinproof.training.per_example.fast import Call, added, bias_gradient, by_record, handles, joined, trainable
from twinproof.training.per_example.gradients import (
    SCRATCH,
    EmbeddingFactors,
    Instantiated,
    LinearFactors,
    PerExampleGradient,
    Rearranged,
)
from twinproof.training.per_example.magnitude import SignedFactors, by_use, difference_gradient, signs_of

# Costs on a CPU in products of a float32 matrix product, measured on one core: a product in a batched float64 Gram matrix, one
# in a large float64 matrix product, and a number's two conversions to float64 with the norm and the sum taken from them.
_GRAM, _FLOAT64, _CONVERSION = 2.5, 2.0, 60.0
# On a GPU: how many times smaller than the matrix the factors must be.
_GPU_FACTORS = 4


@handles(nn.Linear)
def linear(layer: nn.Linear, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Weight and bias of ``y = x W^T + b``, with any number of axes between the batch and the features."""
    found: dict[str, PerExampleGradient] = {}
    own = trainable(layer)
    if "weight" in own:
        found["weight"] = _linear_weight(layer, calls, records)
    if "bias" in own:
        width = layer.out_features
        found["bias"] = bias_gradient(own["bias"], calls, records, lambda errors: by_record(errors, records, width).sum(1))
    return found


def _linear_weight(layer: nn.Linear, calls: Sequence[Call], records: int) -> PerExampleGradient:
    def factors(group: Sequence[Call]) -> LinearFactors:
        errors = joined([by_record(call.errors, records, layer.out_features) for call in group])
        return LinearFactors(joined([by_record(call.inputs, records, layer.in_features) for call in group]), errors)

    def cheaper(positions: int) -> bool:
        return factors_are_cheaper(positions, layer.in_features, layer.out_features, layer.weight.device.type)

    plain, spreads, differences = by_use(calls)
    parts = []
    if plain:
        found = factors(plain)
        positions = found.inputs.shape[1]
        if len(plain) == len(calls):
            return found if cheaper(positions) else Instantiated(found.instantiate())
        if spreads and not differences:
            signed = SignedFactors(found, factors(spreads), signs_of(layer))
            both = signed.spread.inputs.shape[1]
            return signed if cheaper(positions + both + positions * both) else Instantiated(signed.instantiate())
        parts.append(found.instantiate())
    if spreads:
        parts.append(signs_of(layer) * factors(spreads).instantiate())
    if differences:
        parts.append(difference_gradient(layer, differences, records))
    return Instantiated(added(parts))


def factors_are_cheaper(positions: int, n_in: int, n_out: int, device: str = "cpu") -> bool:
    """Whether a sum of ``positions`` outer products is better kept as factors than formed as a matrix (n_out, n_in).

    Factors need T * T * (in + out) products for the norm and T * in * out for the sum, all in float64, and two conversions of
    the factors; a matrix needs T * in * out products in float32, and two conversions of its entries. On a GPU, where kernels
    read a matrix as it is and factors are converted in memory, factors must be far smaller to be worth it.
    """
    cells, sides = n_in * n_out, n_in + n_out
    if device != "cpu":
        return positions == 1 or _GPU_FACTORS * positions * sides <= cells
    factors = positions * (sides * (_GRAM * positions + _CONVERSION) + _FLOAT64 * cells)
    return factors <= cells * (positions + _CONVERSION)


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
    views = {id(call): patches(layer, call.inputs) for call in calls}
    # The copy follows the memory: with channels innermost it moves runs of channels, otherwise runs of the kernel's last axis.
    channels_inner = all(view.stride(1) <= view.stride(-1) for view in views.values())
    plain, spreads, _ = by_use(calls)

    def products(group: Sequence[Call]) -> Rearranged:
        return _contracted(layer, group, [views[id(call)] for call in group], records, channels_inner=channels_inner)

    if not spreads:
        return products(plain)
    spread = products(spreads)
    signs = signs_of(layer).permute([spread.axes.index(axis) for axis in range(len(spread.axes))])
    values = spread.inner.instantiate().mul_(signs.reshape(layer.out_channels, -1))
    if plain:
        values.add_(products(plain).inner.instantiate())
    return replace(spread, inner=Instantiated(values))


def _contracted(
    layer: Convolution, calls: Sequence[Call], views: Sequence[Tensor], records: int, *, channels_inner: bool
) -> Rearranged:
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


@handles(nn.Embedding)
def embedding(layer: nn.Embedding, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """The table; ids may repeat inside a record, and ``padding_idx`` has no gradient."""
    ids = joined([by_record(call.inputs, records) for call in calls]).long()
    errors = joined([by_record(call.errors, records, layer.embedding_dim) for call in calls])
    if layer.padding_idx is not None:
        errors = errors.masked_fill((ids == layer.padding_idx)[:, :, None], 0)
    return {"weight": EmbeddingFactors(ids, errors, layer.num_embeddings)}


@handles(nn.GroupNorm)
def group_norm(layer: nn.GroupNorm, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Scale and shift of one number per channel; channels are the second axis."""

    def summed(values: Tensor) -> Tensor:
        copies = values.shape[0] // records
        return values.reshape(records, copies, layer.num_channels, -1).sum((1, 3))

    def normalised(values: Tensor) -> Tensor:
        return functional.group_norm(values, layer.num_groups, eps=layer.eps)

    return _scale_and_shift(layer, calls, normalised, summed)


@handles(nn.LayerNorm)
def layer_norm(layer: nn.LayerNorm, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Scale and shift in the shape of the last axes."""

    def summed(values: Tensor) -> Tensor:
        return by_record(values, records, *layer.normalized_shape).sum(1)

    def normalised(values: Tensor) -> Tensor:
        return functional.layer_norm(values, list(layer.normalized_shape), eps=layer.eps)

    return _scale_and_shift(layer, calls, normalised, summed)


def _scale_and_shift(
    layer: nn.Module, calls: Sequence[Call], normalised: Callable[[Tensor], Tensor], summed: Callable[[Tensor], Tensor]
) -> dict[str, PerExampleGradient]:
    """Weight and bias of ``weight * normalised(x) + bias``; ``summed`` adds up the places of a record that share them."""
    found: dict[str, PerExampleGradient] = {}
    if "weight" in trainable(layer):
        found["weight"] = Instantiated(added([summed(call.errors * normalised(call.inputs)) for call in calls]))
    if "bias" in trainable(layer):
        found["bias"] = Instantiated(added([summed(call.errors) for call in calls]))
    return found


@handles(LearnedSpread)
def learned_spread(layer: LearnedSpread, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """``log_shares`` of y = s * xi; the layer's inputs are the very noise xi of each copy.

    With p = softmax(log_shares) and s_k**2 = (1 - floor) K p_k + floor, the slope of s_k in log_share j is
    (1 - floor) K p_k (1[j = k] - p_j) / (2 s_k).
    """
    if "log_shares" not in trainable(layer):
        return {}
    at_scales = added([by_record(call.inputs * call.errors, records, layer.coordinates).sum(1) for call in calls])
    shares = torch.softmax(layer.log_shares.detach().double(), dim=0)
    growth = shares * ((1 - layer.floor) * layer.coordinates)
    slopes = (growth / (2 * (growth + layer.floor).sqrt())).to(at_scales.dtype)
    at_shares: Tensor = at_scales * slopes
    return {"log_shares": Instantiated(at_shares - shares.to(at_scales.dtype) * at_shares.sum(1, keepdim=True))}
