"""A GPU kernel for group normalisation and activation in one pass over memory (import only where Triton is installed).

Maps are contiguous (rows, height, width, channels). One program holds the maps of one row and some of its groups in registers:
they are read once and written once, where torch reads them three times and writes them twice.
"""

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
