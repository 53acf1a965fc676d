"""Input plus noise on a GPU in one Triton kernel: random words, table look-up and the sum, written once.

The same integer operations as on the CPU (``table_noise``), so the same bits. A value is guessed by a single-precision inverse
of the law's distribution function and then checked against the two boundaries next to it. On a fine grid a guess is often off
by one: the neighbour is tried. Whatever is wrong then only costs a search in the table.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Cipher blocks of one program, and its warps: the fastest of those tried on an H200.
_BLOCK, _WARPS = 128, 2


def write_noisy_rows(
    out: Tensor,
    stored: Tensor,
    keys: Tensor,
    tables: tuple[Tensor, Tensor],
    *,
    row: int,
    span: int,
    after: int,
    width: int,
    steps: float,
    grid: float,
    levels: int,
    laplace: bool = False,
) -> None:
    """Writes (stored + noise) / levels into ``out`` (rows, dimension).

    Its first row is number ``row`` of all rows: row r is draw ``after + r % span`` of input ``r // span``. ``keys`` holds four
    64-bit numbers for each input (words and refinement), ``tables`` the high halves of the boundaries and the boundaries.
    ``steps`` and ``laplace`` (else normal) are for guessing only: a table of another law is drawn from all the same, slowly.
    """
    high, whole = tables
    rows, dimension = out.shape
    programs = triton.cdiv(rows * (width // 8), _BLOCK)
    where = (row // span, row % span, span, after)
    _noisy_rows[(programs,)](
        out,
        stored,
        keys,
        high,
        whole,
        rows,
        *where,
        dimension,
        width,
        high.numel(),
        steps,
        grid,
        float(levels),
        DEPTH=high.numel().bit_length(),
        LAPLACE=laplace,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )


@triton.jit
def _cipher(c0, k0, k1):
    """Philox4x64-10 of the counter (c0, 0, 0, 0)."""
    m0 = tl.full(c0.shape, 0xD2E7470EE14C6C93, tl.uint64)
    m1 = tl.full(c0.shape, 0xCA5A826395121157, tl.uint64)
    c1 = tl.full(c0.shape, 0, tl.uint64)
    c2 = c1
    c3 = c1
    for _ in tl.static_range(10):
        high0 = tl.umulhi(m0, c0)
        high1 = tl.umulhi(m1, c2)
        low0 = m0 * c0
        low1 = m1 * c2
        c0 = high1 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1 = low1
        c3 = low0
        k0 = k0 + tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
        k1 = k1 + tl.full((), 0xBB67AE8584CAA73B, tl.uint64)
    return c0, c1, c2, c3


@triton.jit
def _words(counter, keys):
    """The eight 32-bit words of each block, in order; ``keys`` points at the two halves of each block's cipher key."""
    k0 = tl.load(keys).to(tl.uint64, bitcast=True)
    k1 = tl.load(keys + 1).to(tl.uint64, bitcast=True)
    a, b, c, d = _cipher(counter, k0, k1)
    whole = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return tl.interleave((whole & 0xFFFFFFFF).to(tl.uint32), (whole >> 32).to(tl.uint32))


@triton.jit
def _normal(word):
    """A standard normal number, to single precision, from the word taken as a probability (Giles 2010)."""
    upper = word >= 0x80000000
    tail = (tl.where(upper, 0xFFFFFFFF - word, word).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    y = -tl.log(4.0 * tail * (1.0 - tail))
    near = y - 2.5
    s = 2.81022636e-08
    s = 3.43273939e-07 + s * near
    s = -3.5233877e-06 + s * near
    s = -4.39150654e-06 + s * near
    s = 0.00021858087 + s * near
    s = -0.00125372503 + s * near
    s = -0.00417768164 + s * near
    s = 0.246640727 + s * near
    s = 1.50140941 + s * near
    far = tl.sqrt(y) - 3.0
    t = -0.000200214257
    t = 0.000100950558 + t * far
    t = 0.00134934322 + t * far
    t = -0.00367342844 + t * far
    t = 0.00573950773 + t * far
    t = -0.0076224613 + t * far
    t = 0.00943887047 + t * far
    t = 1.00167406 + t * far
    t = 2.83297682 + t * far
    size = 1.41421356237 * (1.0 - 2.0 * tail) * tl.where(y < 5.0, s, t)
    return tl.where(upper, size, -size)


@triton.jit
def _laplace(word):
    """A standard Laplace number, to single precision, from the word taken as a probability."""
    upper = word >= 0x80000000
    tail = (tl.where(upper, 0xFFFFFFFF - word, word).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    size = -tl.log(2.0 * tail)
    return tl.where(upper, size, -size)


@triton.jit
def _neighbours(high, entries, count):
    """The boundaries' high halves right below and above cell ``count``; where there is none, 0."""
    below = tl.load(high + count - 1, mask=count > 0, other=0).to(tl.uint32, bitcast=True)
    above = tl.load(high + count, mask=count < entries, other=0).to(tl.uint32, bitcast=True)
    return below, above


@triton.jit
def _is_unsure(word, count, below, above, entries):
    """Whether cell ``count`` is wrong, or cannot be told from a neighbour by high halves alone."""
    return ((count > 0) & (word <= below)) | ((count < entries) & (word >= above))


@triton.jit
def _not_above(table, entries, word, wanted, DEPTH: tl.constexpr):
    """How many entries of a growing table are at most ``word``; only where it is ``wanted``, the table is read."""
    low = tl.full(word.shape, 0, tl.int32)
    high = tl.where(wanted, entries, low)
    for _ in range(DEPTH):
        middle = (low + high) // 2
        open_ = low < high
        entry = tl.load(table + middle, mask=open_, other=0).to(word.dtype, bitcast=True)
        low = tl.where(open_ & (entry <= word), middle + 1, low)
        high = tl.where(open_ & (entry > word), middle, high)
    return low


@triton.jit(do_not_specialize=["rows", "input_", "draw", "span", "after"])
def _noisy_rows(
    out,
    stored,
    keys,
    high,
    whole,
    rows,
    input_,
    draw,
    span,
    after,
    dimension,
    width,
    entries,
    steps,
    grid,
    levels,
    DEPTH: tl.constexpr,
    LAPLACE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program makes BLOCK cipher blocks: 8 * BLOCK coordinates of the rows, each row a whole number of blocks."""
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    per_row = width // 8
    row = tl.minimum(block // per_row, rows - 1)
    place = draw + row
    number = (after + place % span).to(tl.int64) * per_row + block % per_row
    # The cipher counts from 1, as numpy does.
    counter = (number + 1).to(tl.uint64)
    own = keys + 4 * (input_ + place // span)
    word = _words(counter, own)
    guess = _laplace(word) if LAPLACE else _normal(word)
    count = tl.floor(guess * steps + 0.5).to(tl.int32) + entries // 2
    count = tl.minimum(tl.maximum(count, 0), entries)
    below, above = _neighbours(high, entries, count)
    unsure = _is_unsure(word, count, below, above, entries)
    if tl.max(unsure.to(tl.int32), axis=0) > 0:
        up = (count < entries) & (word > above)
        down = (count > 0) & (word < below)
        count += up.to(tl.int32) - down.to(tl.int32)
        below, above = _neighbours(high, entries, count)
        unsure = _is_unsure(word, count, below, above, entries)
        if tl.max(unsure.to(tl.int32), axis=0) > 0:
            count = tl.where(unsure, _not_above(high, entries, word, unsure, DEPTH), count)
            below, above = _neighbours(high, entries, count)
            tie = (count > 0) & (word == below)
            if tl.max(tie.to(tl.int32), axis=0) > 0:
                refined = (word.to(tl.uint64) << 32) | _words(counter, own + 2).to(tl.uint64)
                count = tl.where(tie, _not_above(whole, entries, refined, tie, DEPTH), count)
    at = tl.program_id(0) * BLOCK * 8 + tl.arange(0, 8 * BLOCK)
    row = at // width
    coordinate = at % width
    keep = (row < rows) & (coordinate < dimension)
    level = tl.load(stored + (input_ + (draw + row) // span) * dimension + coordinate, mask=keep, other=0.0)
    noisy = level + (count - entries // 2).to(tl.float32) * grid
    # Division as IEEE 754 has it: the quotient must be the one that a CPU makes.
    tl.store(out + row * dimension + coordinate, tl.div_rn(noisy, levels), mask=keep)
