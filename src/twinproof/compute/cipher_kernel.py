"""ChaCha20 as one Triton kernel; ``cipher.plain_blocks`` does the same in torch operations."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS_OF_A_PROGRAM = 128


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _chacha20(keys, out, blocks, BLOCK: tl.constexpr):
    stream = tl.program_id(0)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    counter = number.to(tl.uint32)
    none = counter ^ counter
    k0 = tl.load(keys + stream * 8 + 0).to(tl.uint32, bitcast=True) + none
    k1 = tl.load(keys + stream * 8 + 1).to(tl.uint32, bitcast=True) + none
    k2 = tl.load(keys + stream * 8 + 2).to(tl.uint32, bitcast=True) + none
    k3 = tl.load(keys + stream * 8 + 3).to(tl.uint32, bitcast=True) + none
    k4 = tl.load(keys + stream * 8 + 4).to(tl.uint32, bitcast=True) + none
    k5 = tl.load(keys + stream * 8 + 5).to(tl.uint32, bitcast=True) + none
    k6 = tl.load(keys + stream * 8 + 6).to(tl.uint32, bitcast=True) + none
    k7 = tl.load(keys + stream * 8 + 7).to(tl.uint32, bitcast=True) + none
    c0 = tl.full((BLOCK,), 0x61707865, tl.uint32)
    c1 = tl.full((BLOCK,), 0x3320646E, tl.uint32)
    c2 = tl.full((BLOCK,), 0x79622D32, tl.uint32)
    c3 = tl.full((BLOCK,), 0x6B206574, tl.uint32)
    s0, s1, s2, s3 = c0, c1, c2, c3
    s4, s5, s6, s7, s8, s9, s10, s11 = k0, k1, k2, k3, k4, k5, k6, k7
    s12, s13, s14, s15 = counter, none, none, none
    for _ in range(10):
        s0, s4, s8, s12 = _quarter(s0, s4, s8, s12)
        s1, s5, s9, s13 = _quarter(s1, s5, s9, s13)
        s2, s6, s10, s14 = _quarter(s2, s6, s10, s14)
        s3, s7, s11, s15 = _quarter(s3, s7, s11, s15)
        s0, s5, s10, s15 = _quarter(s0, s5, s10, s15)
        s1, s6, s11, s12 = _quarter(s1, s6, s11, s12)
        s2, s7, s8, s13 = _quarter(s2, s7, s8, s13)
        s3, s4, s9, s14 = _quarter(s3, s4, s9, s14)
    there = number < blocks
    place = out + (stream.to(tl.int64) * blocks + number) * 16
    tl.store(place + 0, (s0 + c0).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 1, (s1 + c1).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 2, (s2 + c2).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 3, (s3 + c3).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 4, (s4 + k0).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 5, (s5 + k1).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 6, (s6 + k2).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 7, (s7 + k3).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 8, (s8 + k4).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 9, (s9 + k5).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 10, (s10 + k6).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 11, (s11 + k7).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 12, (s12 + counter).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 13, s13.to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 14, s14.to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 15, s15.to(tl.int32, bitcast=True), mask=there)


def chacha20_blocks(keys: Tensor, blocks: int) -> Tensor:
    """All blocks of all keys: (n, 8) int32 -> (n, 16 * blocks) int32, on the keys' device."""
    streams = keys.shape[0]
    out = torch.empty(streams, 16 * blocks, dtype=torch.int32, device=keys.device)
    if out.numel():
        grid = (streams, triton.cdiv(blocks, _BLOCKS_OF_A_PROGRAM))
        _chacha20[grid](keys.contiguous(), out, blocks, BLOCK=_BLOCKS_OF_A_PROGRAM)
    return out
