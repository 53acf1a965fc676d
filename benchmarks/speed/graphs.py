"""Capturing a step as a CUDA graph: its kernels are recorded once and then started all together."""

from __future__ import annotations

from collections.abc import Callable

import torch

from speed.peers.peer import Answer, NotRun, Step

_WARM_UP = 3


def captured(step: Callable[[], Answer], device: torch.device) -> Step:
    """The step as a graph; NotRun where there is no CUDA or torch refuses to capture it."""
    if device.type != "cuda":
        raise NotRun("CUDA graphs need a GPU")
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            answer = step()
    except RuntimeError as error:
        raise NotRun(f"cannot be captured: {str(error).splitlines()[0]}") from error

    def replay() -> Answer:
        graph.replay()
        return answer

    # A replay allocates nothing: what the step needs was set aside while it was captured.
    return Step(replay, reserved_bytes=torch.cuda.max_memory_allocated(device) - before, keeps=step)
