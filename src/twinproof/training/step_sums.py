"""The clipped sum of one step: passes on all cores, or as one recording on a GPU."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from twinproof.compute.devices import Captured
from twinproof.training.passes import Batching, Pass, PassMode
from twinproof.training.per_example.paths import PerExamplePath

Item = TypeVar("Item")
Result = TypeVar("Result")
ClipWeights = Callable[[Tensor], Tensor]
"""Squared norms of records (m,) -> the factor of each record's gradient, 0 where it is not finite."""


@dataclass(frozen=True, eq=False)
class ClippedSums:
    """Sums of clipped gradients by parameter name, in float64, and how many records were (clipped, not finite): (2,) int64."""

    by_name: dict[str, Tensor]
    counts: Tensor


@dataclass(frozen=True)
class ClippedPass:
    """Gradients of a pass's records, each the mean over its copies, clipped by its own norm and added up.

    Guarantees
        A record that is absent, or whose gradient is not finite, adds exactly nothing.
    """

    path: PerExamplePath
    clip_weights: ClipWeights

    def __call__(self, batch: Pass, copies: Tensor) -> ClippedSums:
        """The sums over one pass."""
        gradients = self.path.gradients(copies, batch.labels)
        norms = gradients.squared_norms()
        broken = ~torch.isfinite(norms)
        weights = self.clip_weights(norms) * batch.present
        sums = gradients.weighted_sums(weights)
        counts = torch.stack([((weights < 1) & batch.present & ~broken).sum(), (broken & batch.present).sum()])
        return ClippedSums(sums, counts)


class StepSums(ABC):
    """Adds up the clipped gradients of the records that a step drew."""

    @abstractmethod
    def of(self, indices: Tensor, step: int) -> ClippedSums:
        """The sums over this rank's passes of the drawn records ``indices``; they hold until the next call."""


class HostStepSums(StepSums):
    """Passes one by one, or on several cores at once, one pass on each.

    Guarantees
        Sums of passes are added in the order of the passes: with one thread inside each operation, as several workers have
        it, the result is the same to the bit for any number of workers.
    """

    def __init__(self, work: ClippedPass, batching: Batching, shapes: Mapping[str, Tensor], *, workers: int = 1) -> None:
        self._work = work
        self._batching = batching
        self._shapes = shapes
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None

    def of(self, indices: Tensor, step: int) -> ClippedSums:
        """See :class:`StepSums`."""
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self._shapes.items()}
        counts = torch.zeros(2, dtype=torch.int64, device=indices.device)
        for part in self._parts(indices, step):
            for name, value in part.by_name.items():
                sums[name] += value
            counts += part.counts
        return ClippedSums(sums, counts)

    def _parts(self, indices: Tensor, step: int) -> Iterator[ClippedSums]:
        numbered = enumerate(self._batching.passes(indices))

        def one(numbered_pass: tuple[int, Pass]) -> ClippedSums:
            number, batch = numbered_pass
            return self._work(batch, self._batching.copies(batch.inputs, step, number))

        if self._workers == 1:
            for number, batch in numbered:
                with self._batching.layers_seeded(step, number):
                    part = one((number, batch))
                yield part
            return
        if self._pool is None:
            self._pool = _single_threaded_workers(self._workers)
        yield from in_order(self._pool, one, numbered, ahead=self._workers)


class DeviceStepSums(StepSums):
    """Passes as one recording on tensors that stay in place: which rows, how many of them count, and the seed of their noise.

    The host waits for nothing: rows and counts lie on the device, and so do the sums.
    """

    def __init__(self, work: ClippedPass, batching: Batching, shapes: Mapping[str, Tensor]) -> None:
        self._work = work
        self._batching = batching
        device = batching.records.device
        self._rows = torch.zeros(batching.physical_batch, dtype=torch.int64, device=device)
        self._places = torch.arange(batching.physical_batch, device=device)
        self._drawn = torch.zeros((), dtype=torch.int64, device=device)
        self._generator = torch.Generator(device)
        sizes = [value.numel() for value in shapes.values()]
        # One vector for all parameters, so that it takes one kernel to set it to zero.
        self._flat = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        parts = zip(shapes.items(), torch.split(self._flat, sizes), strict=True)
        self._total = ClippedSums(
            {name: part.view(value.shape) for (name, value), part in parts},
            torch.zeros(2, dtype=torch.int64, device=device),
        )
        self._add = Captured(self._added, device, [self._generator])

    def of(self, indices: Tensor, step: int) -> ClippedSums:
        """See :class:`StepSums`."""
        self._flat.zero_()
        self._total.counts.zero_()
        size, indices = self._batching.physical_batch, self._batching.own(indices)
        for number, start in enumerate(range(0, len(indices), size)):
            chunk = indices[start : start + size]
            self._rows[: len(chunk)].copy_(chunk)
            self._drawn.fill_(len(chunk))
            self._batching.seed_augmentation(self._generator, step, number)
            with self._batching.layers_seeded(step, number):
                self._add()
        return ClippedSums(self._total.by_name, self._total.counts.clone())

    def _added(self) -> None:
        batch = self._batching.records.take(self._rows, self._places < self._drawn)
        part = self._work(batch, self._batching.augmentation(batch.inputs, self._generator))
        for name, value in part.by_name.items():
            self._total.by_name[name] += value
        self._total.counts.add_(part.counts)


def step_sums(work: ClippedPass, batching: Batching, shapes: Mapping[str, Tensor], mode: PassMode) -> StepSums:
    """The way to add up a step's gradients in this mode."""
    if mode.capture:
        return DeviceStepSums(work, batching, shapes)
    return HostStepSums(work, batching, shapes, workers=mode.workers)


def in_order(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[Result]:
    """Results in the order of the items, of which at most ``ahead`` are under way: what waits must not fill the memory."""
    under_way: deque[Future[Result]] = deque()
    for item in items:
        if len(under_way) == ahead:
            yield under_way.popleft().result()
        under_way.append(pool.submit(work, item))
    while under_way:
        yield under_way.popleft().result()


def _single_threaded_workers(workers: int) -> ThreadPoolExecutor:
    """Threads in which torch's operators use one thread each; those of the caller are left as they are."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="pass", initializer=torch.set_num_threads, initargs=(1,))
    for started in [pool.submit(torch.get_num_threads) for _ in range(workers)]:
        started.result()
    torch.set_num_threads(threads)
    return pool


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
