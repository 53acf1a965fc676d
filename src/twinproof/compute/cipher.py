"""ChaCha20 (RFC 8439) on the device that uses its output.

The host's streams come from SHAKE-256 (``keys.py``), which no GPU has. So for each purpose and step the host derives one
256-bit key from its own, and the device expands it: as long as ChaCha20 is a pseudorandom function, its words are as secret
as the key. The nonce is zero and the block counter starts at zero, since a key is used for one stream only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from twinproof.compute.devices import kernels_run
from twinproof.keys import KEY_BYTES

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_WORDS_OF_A_BLOCK = 16
_MOST_BLOCKS = 2**31 - 1  # the counter is one 32-bit word
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def cipher_keys(secrets: Sequence[bytes], device: torch.device) -> Tensor:
    """Keys of 32 bytes as the (n, 8) int32 tensor that :func:`cipher_words` takes."""
    if any(len(secret) != KEY_BYTES for secret in secrets):
        raise ValueError(f"a key holds {KEY_BYTES} bytes")
    words = np.frombuffer(b"".join(secrets), dtype="<i4").astype(np.int32).reshape(len(secrets), 8)
    return torch.from_numpy(words).to(device)


def cipher_words(keys: Tensor, count: int) -> Tensor:
    """The first ``count`` 32-bit words of the stream of each key: ``keys`` (n, 8) int32 -> (n, count) int32.

    Guarantees
        The words of RFC 8439's block function with a zero nonce and counters 0, 1, 2, ... (tests: the vectors of its
        appendix A.1, and the two implementations against each other).
    """
    blocks = -(-count // _WORDS_OF_A_BLOCK)
    if blocks > _MOST_BLOCKS:
        raise ValueError(f"a stream ends after {_MOST_BLOCKS * _WORDS_OF_A_BLOCK} words, got {count}")
    if kernels_run(keys.device):
        from twinproof.compute.cipher_kernel import chacha20_blocks

        # Triton launches on the current GPU, which need not be the one of the keys.
        with torch.cuda.device(keys.device):
            words = chacha20_blocks(keys, blocks)
    else:
        words = plain_blocks(keys, blocks)
    return words[:, :count]


def plain_blocks(keys: Tensor, blocks: int) -> Tensor:
    """All blocks by torch operations: (n, 16 * blocks) int32. The reference of the kernel, and what runs without it."""
    counters = torch.arange(blocks, dtype=torch.int32, device=keys.device).expand(keys.shape[0], blocks)
    constants = [torch.full_like(counters, _signed(value)) for value in _CONSTANTS]
    secret = [keys[:, word : word + 1].expand_as(counters) for word in range(8)]
    nonce = [torch.zeros_like(counters)] * 3
    start = [*constants, *secret, counters, *nonce]
    state = list(start)
    for _ in range(10):
        for quarter in (*_COLUMNS, *_DIAGONALS):
            _quarter_round(state, *quarter)
    return torch.stack([word + first for word, first in zip(state, start, strict=True)], dim=2).flatten(1)


def _quarter_round(state: list[Tensor], a: int, b: int, c: int, d: int) -> None:
    for target, other, mixed, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[target] = state[target] + state[other]
        state[mixed] = _rotated(state[mixed] ^ state[target], turn)


def _rotated(words: Tensor, turn: int) -> Tensor:
    """Rotated left; the right shift of signed words brings copies of the sign, which are masked off."""
    return (words << turn) | ((words >> (32 - turn)) & ((1 << turn) - 1))


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
