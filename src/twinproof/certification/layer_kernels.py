"""GPU kernels for normalisation, activation and pooling (import only where Triton is installed).

Maps are contiguous (rows, height, width, channels). A program that normalises holds the maps of one row and some of its groups
in registers: they are read once and written once, where torch reads them three times and writes them twice. In a pooled row
output j stands at offset j of the input's row when the stride is 1, so no index has to be divided there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Numbers that one program may hold, and how many of them a warp should.
_LARGEST_TILE, _OF_WARP = 1 << 14, 1024


@triton.jit
def _norm_kernel(
    maps,
    weight,
    bias,
    out,
    positions,
    channels,
    width,
    epsilon,
    gelu: tl.constexpr,
    tile_positions: tl.constexpr,
    groups: tl.constexpr,
    group_tile: tl.constexpr,
):
    """``groups`` groups of one row; each has ``width`` channels, which fill the first places of ``group_tile``."""
    first = tl.program_id(1) * groups
    position = tl.arange(0, tile_positions)[:, None, None]
    inner = tl.arange(0, group_tile)[None, None, :]
    channel = (first + tl.arange(0, groups))[None, :, None] * width + inner
    known = (inner < width) & (channel < channels)
    inside = (position < positions) & known
    offset = tl.program_id(0).to(tl.int64) * positions * channels + position * channels + channel
    values = tl.load(maps + offset, mask=inside, other=0.0)
    count = positions * width
    mean = (tl.sum(tl.sum(values, axis=2), axis=0) / count)[None, :, None]
    centred = tl.where(inside, values - mean, 0.0)
    spread = (tl.sum(tl.sum(centred * centred, axis=2), axis=0) / count)[None, :, None]
    scale = tl.load(weight + channel, mask=known, other=0.0)
    shift = tl.load(bias + channel, mask=known, other=0.0)
    normed = centred * tl.rsqrt(spread + epsilon) * scale + shift
    result = 0.5 * normed * (1.0 + tl.erf(normed * 0.7071067811865476)) if gelu else tl.where(normed < 0, 0.0, normed)
    tl.store(out + offset, result, mask=inside)


def fits(positions: int, width: int) -> bool:
    """Whether one group of so many positions and channels fits into a program."""
    return bool(triton.next_power_of_2(positions) * triton.next_power_of_2(width) <= _LARGEST_TILE)


def normed(maps: Tensor, groups: int, weight: Tensor, bias: Tensor, epsilon: float, *, gelu: bool) -> Tensor:
    """Group normalisation of maps (rows, height, width, channels), scale and shift of each channel, then GELU or ReLU."""
    rows, height, across, channels = maps.shape
    out, width = torch.empty_like(maps), channels // groups
    tile_positions, group_tile = triton.next_power_of_2(height * across), triton.next_power_of_2(width)
    together = max(1, min(groups, _LARGEST_TILE // 2 // (tile_positions * group_tile)))
    together = 1 << (together.bit_length() - 1)
    warps = min(16, max(1, tile_positions * together * group_tile // _OF_WARP))
    _norm_kernel[(rows, triton.cdiv(groups, together))](
        maps,
        weight,
        bias,
        out,
        height * across,
        channels,
        width,
        epsilon,
        gelu=gelu,
        tile_positions=tile_positions,
        groups=together,
        group_tile=group_tile,
        num_warps=warps,
    )
    return out


# Output lines and columns of one program: 64 numbers side by side fill whole cache lines.
_TILE_LINES = 32
_TILE_COLUMNS = 64


@triton.jit
def _activated(x, tanh: tl.constexpr):
    """tanh (off by less than 2e-7) or ReLU; NaN stays NaN."""
    if tanh:
        small = tl.exp(-2.0 * tl.abs(x))
        size = (1.0 - small) / (1.0 + small)
        result = tl.where(x < 0, -size, size)
    else:
        result = tl.where(x < 0, 0.0, x)
    return result


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _taps(line, column, heights_out, line_size, channels, stride: tl.constexpr):
    """For output lines and columns: the row that each belongs to, and the offset of its first input within that row's maps."""
    row = line // heights_out
    top = (line - row * heights_out) * stride
    across = column if stride == 1 else (column // channels) * (stride * channels) + column % channels
    return row, top[:, None] * line_size + across[None, :]


@triton.jit
def _pool_kernel(
    maps,
    bias,
    out,
    lines,
    columns,
    height,
    heights_out,
    line_size,
    channels,
    has_bias: tl.constexpr,
    stride: tl.constexpr,
    tanh: tl.constexpr,
    tile_lines: tl.constexpr,
    tile_columns: tl.constexpr,
):
    line = tl.program_id(0) * tile_lines + tl.arange(0, tile_lines)
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
    row, offset = _taps(line, column, heights_out, line_size, channels, stride)
    inside = (line < lines)[:, None] & (column < columns)[None, :]
    first = maps + row.to(tl.int64)[:, None] * (height * line_size) + offset
    upper = _maximum(tl.load(first, mask=inside), tl.load(first + channels, mask=inside))
    lower = _maximum(tl.load(first + line_size, mask=inside), tl.load(first + line_size + channels, mask=inside))
    largest = _maximum(upper, lower)
    if has_bias:
        largest += tl.load(bias + column % channels)[None, :]
    result = _activated(largest, tanh)
    tl.store(out + line.to(tl.int64)[:, None] * columns + column[None, :], result, mask=inside)


@triton.jit
def _sum_pool_kernel(
    inputs,
    draws,
    out,
    count,
    lines,
    columns,
    height,
    heights_out,
    line_size,
    channels,
    stride: tl.constexpr,
    tanh: tl.constexpr,
    tile_lines: tl.constexpr,
    tile_columns: tl.constexpr,
):
    line = tl.program_id(0) * tile_lines + tl.arange(0, tile_lines)
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
    row, offset = _taps(line, column, heights_out, line_size, channels, stride)
    inside = (line < lines)[:, None] & (column < columns)[None, :]
    size = height * line_size
    one = inputs + (row // count).to(tl.int64)[:, None] * size + offset
    other = draws + (row % count).to(tl.int64)[:, None] * size + offset
    result = tl.zeros((tile_lines, tile_columns), tl.float32)
    for tap in tl.static_range(4):
        step = (tap // 2) * line_size + (tap % 2) * channels
        # The sum is exact in float64; what is rounded is a function of the sum alone.
        value = (tl.load(one + step, mask=inside) + tl.load(other + step, mask=inside)).to(tl.float32)
        result = value if tap == 0 else _maximum(result, value)
    tl.store(out + line.to(tl.int64)[:, None] * columns + column[None, :], _activated(result, tanh), mask=inside)


def pooled(maps: Tensor, *, stride: int, tanh: bool, bias: Tensor | None = None) -> Tensor:
    """Maxima of 2x2 windows, a bias of each channel if there is one, then tanh or ReLU: the same as pooling after it."""
    out = _answer(maps, len(maps), stride)
    given = maps if bias is None else bias
    _pool_kernel[_grid(out)](maps, given, out, *_sizes(maps, out), has_bias=bias is not None, **_constants(stride, tanh))
    return out


def pooled_sums(inputs: Tensor, draws: Tensor, *, stride: int, tanh: bool) -> Tensor:
    """The same of ``float32(inputs[i] + draws[j])`` for all i and j (j fastest), both float64, without storing the sums."""
    out = _answer(inputs, len(inputs) * len(draws), stride)
    _sum_pool_kernel[_grid(out)](inputs, draws, out, len(draws), *_sizes(inputs, out), **_constants(stride, tanh))
    return out


def _answer(maps: Tensor, rows: int, stride: int) -> Tensor:
    _, height, width, channels = maps.shape
    shape = (rows, (height - 2) // stride + 1, (width - 2) // stride + 1, channels)
    return torch.empty(shape, dtype=torch.float32, device=maps.device)


def _sizes(maps: Tensor, out: Tensor) -> tuple[int, ...]:
    _, height, width, channels = maps.shape
    rows, heights_out, widths_out, _ = out.shape
    return rows * heights_out, widths_out * channels, height, heights_out, width * channels, channels


def _grid(out: Tensor) -> tuple[int, int]:
    rows, height, width, channels = out.shape
    return -(-rows * height // _TILE_LINES), -(-width * channels // _TILE_COLUMNS)


def _constants(stride: int, tanh: bool) -> dict[str, Any]:
    return {"stride": stride, "tanh": tanh, "tile_lines": _TILE_LINES, "tile_columns": _TILE_COLUMNS}
