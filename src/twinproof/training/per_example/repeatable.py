"""Convolutions on a GPU whose result is the same to the bit each time.

By default cuDNN may add up parts of a gradient in the order in which they happen to be finished. One record's gradient would
then change by a few bits from run to run, and nobody could tell that from a gradient that depends on the other records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable_convolutions(device: torch.device) -> Iterator[None]:
    """Only algorithms with a fixed order of addition inside; on a CPU there is nothing to choose."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=torch.backends.cudnn.allow_tf32
    ):
        yield
