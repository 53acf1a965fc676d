"""Where the gradient of a step comes from: clipped sums over passes and ranks, released through the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from twinproof.compute.devices import Captured
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.privacy.plan import PrivateExecution
from twinproof.privacy.step_randomness import step_randomness
from twinproof.training.passes import ONE_BY_ONE, Batching, Pass, PassMode
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss, trainable_parameters

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
            {name: part.view(value.shape) for (name, value), part in parts}, torch.zeros(2, dtype=torch.int64, device=device)
        )
        self._add = Captured(self._added, device, [self._generator])

    def of(self, indices: Tensor, step: int) -> ClippedSums:
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


def summed_by_name(parts: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The sums over all ranks, in float64, as one message."""
    flat = ranks.sum_in_order(torch.cat([value.double().flatten() for value in parts.values()]))
    pieces = torch.split(flat, [value.numel() for value in parts.values()])
    return {name: piece.view(value.shape) for (name, value), piece in zip(parts.items(), pieces, strict=True)}


def clipped_over_ranks(part: ClippedSums, ranks: Ranks) -> ClippedSums:
    """The clipped sums over the records of all ranks: the same bits on all of them.

    Numbers of ranks differ by the order of float64 additions alone.
    """
    # Counts travel in the same message: they are small whole numbers, which float64 holds exactly.
    summed = summed_by_name({**part.by_name, "": part.counts}, ranks)
    counts = summed.pop("").to(torch.int64)
    return ClippedSums(summed, counts)


# Steps whose draws a GPU may prepare together where no ledger sets the limit.
_AHEAD = 100


@dataclass(frozen=True, eq=False)
class StepDiagnostics:
    """What a step saw of the training records. Sensitive: it goes to ``private/`` and nowhere else.

    ``counts`` lies on the device: reading it waits until the step is done, so the loop leaves it alone.
    """

    step: int
    drawn: int
    counts: Tensor

    @property
    def clipped(self) -> int:
        """How many gradients exceeded the bound."""
        return int(self.counts[0])

    @property
    def non_finite(self) -> int:
        """How many gradients were NaN or infinite, and were left out."""
        return int(self.counts[1])

    def as_dict(self) -> dict[str, int]:
        """For the owner's file."""
        return {"step": self.step, "drawn": self.drawn, "clipped": self.clipped, "non_finite": self.non_finite}


class GradientSource(ABC):
    """Gives the gradient of each step; the loop asks for nothing else."""

    last: StepDiagnostics | None = None
    pass_size: int | None = None  # records of one pass, where a resumed run must keep to it

    @abstractmethod
    def gradient(self, step: int) -> dict[str, Tensor]:
        """The gradient by parameter name."""


class PrivateGradients(GradientSource):
    """Per-example gradients of all copies, averaged, clipped, summed in float64 and released through the plan.

    All ``ranks`` hold the same key, draw the same records, add up their shares and the same noise, once, to the same sum.
    """

    def __init__(
        self,
        execution: PrivateExecution,
        path: PerExamplePath,
        batching: Batching,
        shapes: Mapping[str, Tensor],
        mode: PassMode = ONE_BY_ONE,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self._execution, self._ranks, self._path, self._key = execution, ranks, path, batching.key
        self.pass_size = batching.physical_batch
        work = ClippedPass(path, execution.clip_weights)
        self._sums = step_sums(work, replace(batching, share=ranks.share), shapes, mode)

    def gradient(self, step: int) -> dict[str, Tensor]:
        """One step of DP-SGD: a Poisson draw, the clipped sum over it, noise, a constant divisor."""
        self._path.begin(step, self._key)
        draw = self._execution.draw(step)
        found = self._sums.of(draw.indices, step)
        if self._ranks is not ALONE:
            found = clipped_over_ranks(found, self._ranks)
        self.last = StepDiagnostics(step, len(draw.indices), found.counts)
        return self._execution.release(draw, found.by_name)


class PlainGradients(GradientSource):
    """The ordinary gradient of a Poisson batch: no clipping, no noise, no privacy."""

    def __init__(
        self,
        model: nn.Module,
        loss: RecordLoss,
        batching: Batching,
        *,
        sample_rate: float,
        divisor: float,
        ranks: Ranks = ALONE,
    ) -> None:
        self._model = model
        self._loss = torch.func.vmap(loss, randomness="different")
        self._batching = replace(batching, share=ranks.share)
        self.ranks = ranks
        self.records = records = batching.records
        self._randomness = step_randomness(
            batching.key, records.device, records=len(records), sample_rate=sample_rate, parameters=0
        )
        self._divisor = divisor

    def gradient(self, step: int) -> dict[str, Tensor]:
        """Sum of the drawn records' gradients over the expected batch size."""
        indices = self._randomness.sample(step, announced=step + _AHEAD)
        parameters = trainable_parameters(self._model)
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for number, batch in enumerate(self._batching.passes(indices)):
            copies = self._batching.copies(batch.inputs, step, number)
            with self._batching.layers_seeded(step, number):
                logits = self._model(copies.flatten(0, 1)).unflatten(0, copies.shape[:2])
                losses = torch.where(batch.present, self._loss(logits, batch.labels), 0)
            for name, value in zip(sums, torch.autograd.grad(losses.sum(), list(parameters.values())), strict=True):
                sums[name] += value / self._divisor
        self.last = StepDiagnostics(step, len(indices), torch.zeros(2, dtype=torch.int64))
        if self.ranks is ALONE:
            return sums
        summed = summed_by_name(sums, self.ranks)
        return {name: summed[name].to(value.dtype) for name, value in sums.items()}
