"""Batches shared out among the cores of a CPU, one thread each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# Layers of these packages keep nothing on themselves while they run, so that two threads can use one network at a time.
_STATELESS = ("torch.nn.modules.", "twinproof.")


def each_batch(
    votes_of: Callable[[Sequence[int]], Tensor],
    starts: Sequence[int],
    model: nn.Module,
    device: torch.device,
    *,
    one_by_one: bool = False,
) -> Tensor:
    """The sum of ``votes_of`` over all batches, on as many threads as torch would have used.

    The batches are the same for any number of threads, each is worked on by one thread alone, and votes are
    integers: the result does not depend on the number of threads. A network that may keep something on itself between two
    layers (any code that is not torch's or ours, and any hook) runs in one thread, with torch's own threads inside;
    ``one_by_one`` asks for that too, with one thread inside.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or not is_stateless(model):
        return votes_of(starts)
    with one_thread_inside():
        if one_by_one or threads == 1 or len(starts) == 1:
            return votes_of(starts)
        inference = torch.is_inference_mode_enabled()

        def work(own: Sequence[int]) -> Tensor:
            # Inference mode is a thread's own; a new thread starts without it.
            with torch.inference_mode(inference):
                return votes_of(own)

        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(work, (starts[at::threads] for at in range(min(threads, len(starts))))))
    return torch.stack(parts).sum(dim=0)


@contextmanager
def one_thread_inside() -> Iterator[None]:
    """Each operation of torch runs on one thread; the number that was set is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_stateless(model: nn.Module) -> bool:
    """Whether all layers are torch's or ours, without hooks: they keep nothing on themselves while they run."""
    return all(
        type(layer).__module__.startswith(_STATELESS) and not (layer._forward_hooks or layer._forward_pre_hooks)
        for layer in model.modules()
    )
