"""Work that a GPU repeats: recorded once as a CUDA graph, then started whole instead of kernel by kernel.

A private step of a small network is hundreds of kernels of a few microseconds each, and starting them one by one takes the
host longer than running them takes the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# Plain runs before the recording: libraries choose algorithms, allocate workspace and compile kernels on their first calls.
_PLAIN_RUNS = 2


class Captured:
    """``work`` without arguments, on tensors that stay where they are; on anything but a GPU it is simply called.

    The first calls run the work plainly, a later one records it, and from then on every call replays the recording.
    ``generators`` are those that the work draws from, besides the device's own: a recording then draws from where each
    stands when it is replayed. Work that cannot be recorded goes on being called.

    Guarantees
        Every call does the work exactly once. What the work reads from Python (a learning rate, a list's length) is read
        when it is recorded and stays so: only work whose Python side never changes may be captured.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self._work = work
        self._device = device
        self._generators = generators
        self._plain_runs = _PLAIN_RUNS if device.type == "cuda" else -1
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls replay a recording by now."""
        return self._graph is not None

    def __call__(self) -> None:
        """Does the work once."""
        if self._graph is not None:
            self._graph.replay()
        elif self._plain_runs < 0:
            self._work()
        elif self._plain_runs > 0:
            self._plain_runs -= 1
            self._on_a_side_stream()
        else:
            self._record()
            self()

    def _on_a_side_stream(self) -> None:
        """Recording is done on a stream of its own; workspace that the first runs leave behind must belong to such a one."""
        side, current = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._work()
        current.wait_stream(side)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize(self._device)
        try:
            with torch.cuda.graph(graph):
                self._work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._plain_runs = -1
            return
        self._graph = graph
