"""Whether Triton kernels run on a device: asked once, in one place, by everything that has a kernel and a plain form."""

from __future__ import annotations

from functools import cache
from subprocess import SubprocessError

import torch


@cache
def kernels_run(device: torch.device) -> bool:
    """Whether a small kernel ran on ``device``; not so without a GPU, without Triton, or without the compiler it calls."""
    if device.type != "cuda":
        return False
    try:
        from twinproof.stream_cipher_kernel import chacha20_blocks

        with torch.cuda.device(device):
            chacha20_blocks(torch.zeros(1, 8, dtype=torch.int32, device=device), 1)
    except (ImportError, OSError, RuntimeError, SubprocessError):
        return False
    return True
