"""Triton kernels for norms and clipped sums: float32 gradients are read once and added up in float64 on the way.

With torch operations the float64 copies of the gradients were a fifth of the private step on a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows are added up in at most this many segments side by side, then the segments: always in the same order. A wide matrix has
# programs enough without, and its segments would take more memory traffic than the matrix itself.
_SEGMENTS, _PROGRAMS = 32, 2048
# Entries of a row that one program adds up.
_LONGEST_PART = 1 << 14
_COLUMNS = 128
_ROW_TILE = {"rows": 8, "columns": 256}


@triton.jit
def _row_squares(values, out, rows, width, of_part, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    last = tl.minimum((part + 1) * of_part, width)
    total = tl.zeros((ROWS, COLUMNS), tl.float64)
    for start in range(part * of_part, last, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = (row < rows)[:, None] & (column < last)[None, :]
        value = tl.load(values + row[:, None] * width + column[None, :], mask=there, other=0.0).to(tl.float64)
        total += value * value
    tl.store(out + part * rows + row, tl.sum(total, axis=1), mask=row < rows)


@triton.jit
def _weighted_rows(values, weights, out, rows, width, of_segment, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    segment = tl.program_id(1)
    first = segment * of_segment
    last = tl.minimum(first + of_segment, rows)
    total = tl.zeros((AT_ONCE, COLUMNS), tl.float64)
    for start in range(first, last, AT_ONCE):
        row = (start + tl.arange(0, AT_ONCE)).to(tl.int64)
        weight = tl.load(weights + row, mask=row < last, other=0.0)
        # A record of weight 0 is not even read: whatever its gradient holds, NaN too, adds nothing.
        there = ((row < last) & (weight != 0.0))[:, None] & (column < width)[None, :]
        value = tl.load(values + row[:, None] * width + column[None, :], mask=there, other=0.0).to(tl.float64)
        total += weight[:, None] * value
    tl.store(out + segment.to(tl.int64) * width + column, tl.sum(total, axis=0), mask=column < width)


def row_squares(values: Tensor) -> Tensor:
    """The sum of squares of each row, accumulated in float64: (m, n) -> (m,)."""
    rows, width = values.shape
    if not rows or not width:
        return torch.zeros(rows, dtype=torch.float64, device=values.device)
    parts = triton.cdiv(width, _LONGEST_PART)
    out = torch.empty(parts, rows, dtype=torch.float64, device=values.device)
    columns = min(_ROW_TILE["columns"], triton.next_power_of_2(width))
    grid = (triton.cdiv(rows, _ROW_TILE["rows"]), parts)
    _row_squares[grid](values, out, rows, width, _LONGEST_PART, ROWS=_ROW_TILE["rows"], COLUMNS=columns)
    return out[0] if parts == 1 else out.sum(0)


def weighted_rows(values: Tensor, weights: Tensor) -> Tensor:
    """The sum over rows of weight times row, in float64: (m, n) and (m,) float64 -> (n,); rows of weight 0 are left out."""
    rows, width = values.shape
    if not rows or not width:
        return torch.zeros(width, dtype=torch.float64, device=values.device)
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    tiles = triton.cdiv(width, columns)
    segments = max(1, min(_SEGMENTS, _PROGRAMS // tiles))
    out = torch.empty(segments, width, dtype=torch.float64, device=values.device)
    _weighted_rows[tiles, segments](values, weights, out, rows, width, triton.cdiv(rows, segments), COLUMNS=columns, AT_ONCE=8)
    return out[0] if segments == 1 else out.sum(0)
