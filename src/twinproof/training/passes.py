"""Records on the device in passes of one fixed size, how large those are, and how they may be run.

A Poisson draw has a random size. Cutting it into passes of one size keeps memory constant, lets the step be compiled or
captured later, and makes a record's gradient independent of how many others were drawn beside it.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from twinproof.compute.devices import own_generators, seed_default_generators, seed_generator
from twinproof.compute.ranks import WHOLE, Share
from twinproof.data.record import Split
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.cross_example import is_known
from twinproof.layers.noise import NoiseLayer, RandomSpread


class Performance(BaseModel):
    """Speed and memory settings.

    Guarantees
        No field changes epsilon, delta, sensitivity or a radius: the plan and the guarantees are computed without it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to compute; auto: a GPU if there is one")
    physical_batch: int | None = Field(default=None, ge=1, description="records per pass; chosen from the batch size if unset")
    path: Literal["auto", "fast", "vmap"] = Field(default="auto", description="how per-example gradients are computed")
    checkpoint_every: int = Field(default=100, ge=1, description="steps between checkpoints")
    report_every: int | None = Field(default=None, ge=1, description="steps between lines in metrics.jsonl; 20 lines if unset")


# On a CPU: rows of a pass, few enough to stay near the core; what a pass costs besides its rows, in rows of a small network;
# bytes of per-example gradients; and the fewest records that still make good matrix products.
_CPU_ROWS, _CPU_ROWS_LOST, _CPU_GRADIENT_BYTES, _CPU_FEWEST = 512, 24, 128 * 2**20, 8
_MULTIPLE = 8


def physical_batch_size(
    performance: Performance,
    expected: float,
    *,
    copies: int,
    limit: int = 4096,
    device: str = "cuda",
    parameters: int = 0,
    workers: int = 1,
) -> int:
    """Records per pass for Poisson draws of ``expected`` records.

    On a GPU one pass holds nearly every draw, unless that many copies would need too much memory. On a CPU small passes are
    faster, and their memory stays small however large the batch: the size is the one that costs least on average, where rows
    that only fill the last pass cost as much as others. ``parameters`` are those of the network; ``workers`` passes run side
    by side.
    """
    if performance.physical_batch is not None:
        return performance.physical_batch
    usual = _MULTIPLE * math.ceil((expected + 4 * math.sqrt(expected) + 1) / _MULTIPLE)
    most = min(usual, largest_pass(copies=copies, limit=limit, device=device, parameters=parameters))
    if device != "cpu":
        return most
    lost = _CPU_ROWS_LOST / copies
    sizes = range(_MULTIPLE, most + 1, _MULTIPLE) if most >= _MULTIPLE else (most,)
    return min(sizes, key=lambda size: expected_passes(expected, size * workers) * (size + lost))


def largest_pass(*, copies: int, limit: int = 4096, device: str = "cuda", parameters: int = 0) -> int:
    """The most records that one pass should hold: on a GPU for its memory, on a CPU also for its caches."""
    most = max(1, limit // copies)
    if device != "cpu":
        return most
    by_rows = _CPU_ROWS // copies
    by_gradients = _CPU_GRADIENT_BYTES // max(1, 4 * parameters)
    return min(most, max(_CPU_FEWEST, min(by_rows, by_gradients)))


def expected_passes(expected: float, size: int) -> float:
    """Mean number of passes of ``size`` records that a Poisson draw of ``expected`` records takes, by the normal limit."""
    deviation = math.sqrt(expected)
    most = math.ceil((expected + 6 * deviation + 1) / size)
    return sum(0.5 * math.erfc((number * size + 0.5 - expected) / (deviation * math.sqrt(2))) for number in range(most))


# Layers that draw numbers in forward take them from torch's global generator, which threads would share.
_DRAWING = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    NoiseLayer,
    RandomSpread,
)


@dataclass(frozen=True)
class PassMode:
    """``workers`` passes at once, one core each; or ``capture``: one recording, replayed for each pass."""

    workers: int = 1
    capture: bool = False


ONE_BY_ONE = PassMode()


def pass_mode(model: nn.Module, device: torch.device) -> PassMode:
    """The fastest mode that is safe for this network on this device.

    A recording freezes what the network's Python code decides, and threads share what it keeps: a network with layers
    that are not torch's or ours is therefore run pass by pass, as it is.
    """
    if not is_known(model):
        return ONE_BY_ONE
    if device.type == "cuda":
        return PassMode(capture=True)
    return ONE_BY_ONE if layers_draw(model) else PassMode(workers=torch.get_num_threads())


def layers_draw(model: nn.Module) -> bool:
    """Whether a layer may draw random numbers in forward; unknown layers may."""
    return not is_known(model) or any(isinstance(layer, _DRAWING) for layer in model.modules())


@dataclass(frozen=True)
class Pass:
    """``size`` rows of inputs in [0, 1] with labels; rows where ``present`` is False are zeros and no record."""

    inputs: Tensor
    labels: Tensor
    present: Tensor


class DeviceRecords:
    """A split of a data set held on a device as the integers it is stored as."""

    def __init__(self, split: Split, levels: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        stored = split.inputs if split.inputs.dtype == np.uint8 else split.inputs.astype(np.int32)
        self._stored = torch.from_numpy(np.ascontiguousarray(stored)).to(device)
        self.labels = torch.from_numpy(split.labels).to(device)
        self.device = self.labels.device
        self._levels = levels
        self._dtype = dtype

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """Inputs in [0, 1]."""
        return self._stored[rows].to(self._dtype) / self._levels

    def take(self, rows: Tensor, present: Tensor) -> Pass:
        """The records ``rows``; zeros where ``present`` is False."""
        # Not even masked may anybody's record stand in a row that only fills the pass.
        inputs = self.inputs(rows)
        inputs = torch.where(present.view(-1, *(1 for _ in inputs.shape[1:])), inputs, 0)
        return Pass(inputs, torch.where(present, self.labels[rows], 0), present)

    def passes(self, indices: Tensor, size: int) -> Iterator[Pass]:
        """The records ``indices`` in passes of exactly ``size`` rows; no pass at all for an empty draw."""
        for start in range(0, len(indices), size):
            chunk = indices[start : start + size]
            rows = torch.cat([chunk, chunk.new_zeros(size - len(chunk))])
            yield self.take(rows, torch.arange(size, device=self.device) < len(chunk))


class Augmentation(ABC):
    """Makes the copies of each record from that record and fresh noise, never from another record."""

    @property
    @abstractmethod
    def copies(self) -> int:
        """How many copies of each record the network sees."""

    @abstractmethod
    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """(records, *shape) -> (records, copies, *shape)."""


@dataclass(frozen=True)
class Repeats(Augmentation):
    """The record as it is, ``copies`` times; in a network with a noise layer every copy meets a draw of its own."""

    copies: int = 1

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ConfigError("a record needs at least one copy", where="copies", got=self.copies, wanted="1 or more")

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Repeats each record in memory of its own, so that a layer may work in place."""
        return inputs.unsqueeze(1).expand(-1, self.copies, *inputs.shape[1:]).contiguous()


@dataclass(frozen=True)
class GaussianCopies(Augmentation):
    """The record and ``noisy`` copies of it with N(0, sigma^2) noise on every coordinate, not clipped back to the range.

    Without ``original`` the noisy copies stand in its place: the network never sees the record itself.
    """

    noisy: int
    sigma: float
    original: bool = True

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ConfigError("a record would never be seen", where="copies", got=self.noisy, wanted="1 or more noisy copies")

    @property
    def copies(self) -> int:
        """The original, where it is kept, and its noisy copies."""
        return self.noisy + self.original

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draws fresh noise for every record and copy; the original comes first."""
        shape = (inputs.shape[0], self.noisy, *inputs.shape[1:])
        noise = torch.randn(shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
        original = inputs.unsqueeze(1)
        noisy = original + self.sigma * noise
        return torch.cat([original, noisy], dim=1) if self.original else noisy


@dataclass(frozen=True)
class Batching:
    """The records, how their copies are made, and how many records one pass holds.

    ``layers_draw`` False says that no layer of the network draws numbers, so that none have to be seeded. Passes are those of
    one rank's ``share``, numbered from 0; their noise belongs to their numbers among the passes of all ranks.
    """

    records: DeviceRecords
    augmentation: Augmentation
    physical_batch: int
    key: Key
    layers_draw: bool = True
    share: Share = WHOLE

    def own(self, indices: Tensor) -> Tensor:
        """Those of the drawn records ``indices`` that are in this rank's passes."""
        return indices if self.share.world == 1 else self.share.own(indices, self.physical_batch)

    def passes(self, indices: Tensor) -> Iterator[Pass]:
        """This rank's passes over the drawn records ``indices``."""
        return self.records.passes(self.own(indices), self.physical_batch)

    def seed_augmentation(self, generator: torch.Generator, step: int, number: int) -> None:
        """Puts ``generator`` where the noise of this step and pass alone begins."""
        seed_generator(generator, self.key, "augmentation", step, self.share.number(number))

    def copies(self, inputs: Tensor, step: int, number: int) -> Tensor:
        """The copies of a pass."""
        generator = torch.Generator(self.records.device)
        self.seed_augmentation(generator, step, number)
        return self.augmentation(inputs, generator)

    @contextmanager
    def layers_seeded(self, step: int, number: int) -> Iterator[None]:
        """Layers that draw (dropout) take their numbers from the run's key, so that a resumed run draws the same."""
        if not self.layers_draw:
            yield
            return
        device = self.records.device
        with own_generators(device):
            seed_default_generators(device, self.key, "layers", step, self.share.number(number))
            yield


PassWork = Callable[[Pass, Tensor], object]
"""What is done with a pass and the copies of its records."""

_FEW, _MORE = 2, 10
# What a pass may take of the memory that is free: a recording keeps scratch of its own, and others live there too.
_SHARE = 0.4


def records_that_fit(work: PassWork, shape: tuple[int, ...], copies: int, device: torch.device) -> int:
    """The largest power of two of records whose pass takes a fair share of what is free on a GPU; at least 1."""
    free, _ = torch.cuda.mem_get_info(device)
    with torch.random.fork_rng(devices=[device]):
        few, more = (_peak_bytes(work, records, shape, copies, device) for records in (_FEW, _MORE))
    each = max(1.0, (more - few) / (_MORE - _FEW))
    return power_of_two_below(_SHARE * free / each)


def power_of_two_below(value: float) -> int:
    """The largest power of two that does not exceed ``value``; 1 if there is none."""
    return 1 << max(0, int(value).bit_length() - 1)


def _peak_bytes(work: PassWork, records: int, shape: tuple[int, ...], copies: int, device: torch.device) -> int:
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
