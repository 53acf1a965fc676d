"""How many records' gradients fit on a GPU: measured on two small passes, so that no first step runs out of memory."""

from __future__ import annotations

import gc

import torch

from twinproof.training.records import Pass
from twinproof.training.step_sums import ClippedPass

_FEW, _MORE = 2, 10
# What a pass may take of the memory that is free: a recording keeps scratch of its own, and others live there too.
_SHARE = 0.4


def records_that_fit(work: ClippedPass, shape: tuple[int, ...], copies: int, device: torch.device) -> int:
    """The largest power of two of records whose pass takes a fair share of what is free on a GPU; at least 1."""
    free, _ = torch.cuda.mem_get_info(device)
    with torch.random.fork_rng(devices=[device]):
        few, more = (_peak_bytes(work, records, shape, copies, device) for records in (_FEW, _MORE))
    each = max(1.0, (more - few) / (_MORE - _FEW))
    return power_of_two_below(_SHARE * free / each)


def power_of_two_below(value: float) -> int:
    """The largest power of two that does not exceed ``value``; 1 if there is none."""
    return 1 << max(0, int(value).bit_length() - 1)


def _peak_bytes(work: ClippedPass, records: int, shape: tuple[int, ...], copies: int, device: torch.device) -> int:
    labels = torch.zeros(records, dtype=torch.int64, device=device)
    inputs = torch.zeros(records, copies, *shape, device=device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work(Pass(inputs[:, 0], labels, torch.ones_like(labels, dtype=torch.bool)), inputs)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def free_device_memory() -> None:
    """Gives memory of finished work back to the device: recorded steps hold theirs until the collector finds them."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
