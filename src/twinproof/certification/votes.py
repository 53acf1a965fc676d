"""The network whose answers are counted, and the votes or scores of noisy copies of many inputs at once.

The proof speaks of independent draws of f(x + noise) for one fixed function f of one input. A network whose answer for one row
depends on the other rows of the batch is not such a function: its votes are not independent and a radius from them is void.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from twinproof.certification.grid_noise import GridNoise, Stream, draws_noise, padded, repeatable, write_noise
from twinproof.certification.lowering import Lowered, lowered
from twinproof.certification.method import Statistic
from twinproof.certification.row_trial import RowTrial, Watched, checked_scores, is_known, refuse_other
from twinproof.compute.devices import each_batch, kernels_run, one_thread_inside
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.module_state import own_copy, tensor_digests
from twinproof.layers.noise import Law

# Rows of one forward pass: enough to fill the device, and so few numbers that a batch leaves room in its cache or memory.
_MOST_ROWS = {"cpu": 1000, "cuda": 65_536}
_MOST_NUMBERS = {"cpu": 2**20, "cuda": 2**26}
_FEWEST_ROWS = 32


@dataclass(frozen=True)
class BaseClassifier:
    """The network that certificates are about, in the form in which it is run.

    ``arithmetic`` and ``form`` name what its last bits depend on besides the weights: the precision of its products, and
    which of the equivalent forms of its layers was chosen.
    """

    network: nn.Module
    classes: int
    arithmetic: str
    form: str

    def finish(self) -> None:
        """After votes were counted: refuses a network that is no longer what it was before."""
        for module in self.network.modules():
            if isinstance(module, Watched):
                module.trial.finish()


def base_classifier(
    model: nn.Module, example: Tensor, rows: int, *, sigma: float = 0.25, form: str | None = None
) -> BaseClassifier:
    """``model``, in eval mode, in its fastest form for ``rows`` rows on the device of ``example``, or in the ``form`` named.

    ``example`` is a batch of one input in [0, 1], ``sigma`` the deviation of the noise. The form that is run is the one that
    is tried (``RowTrial``), before votes are counted and while they are.
    """
    own = unused_copy(model)
    # One thread inside, as when votes are counted: the form must not depend on the number of cores.
    with unchanged(own), one_thread_inside():
        classes = number_of_classes(own, example)
        network = lowered(own, tuple(example.shape[1:]), example.device, rows, form=form)
    made = watched(network, example, sigma, classes, None if own is model else unused_copy(model))
    return BaseClassifier(made, classes, network.arithmetic, network.form)


def unused_copy(model: nn.Module) -> nn.Module:
    """A copy of a network with code of its own, so that a trial does not change the user's; else ``model`` itself."""
    own = None if is_known(model) else own_copy(model)
    return model if own is None else own


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Refuses a network whose parameters or buffers the calls inside have changed."""
    known = is_known(network)
    before = {} if known else tensor_digests(network)
    yield
    refuse_other(before, {} if known else tensor_digests(network), "another value after a forward pass")


def watched(network: Lowered, example: Tensor, sigma: float, classes: int, fresh: nn.Module | None) -> Lowered:
    """``network`` after its trial; one with code that is not torch's or ours is watched from then on (``Watched``).

    ``fresh`` is a copy of the model that was never called, where there is one.
    """
    trial = RowTrial(network.network, example, sigma, classes, fresh)
    trial.run()
    if not trial.known:
        network.network = Watched(trial)
    return network


def rows_per_forward(dimension: int, device: torch.device) -> int:
    """Rows of one forward pass where the caller does not say."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    return max(_FEWEST_ROWS, min(_MOST_ROWS[kind], _MOST_NUMBERS[kind] // dimension))


def number_of_classes(model: nn.Module, example: Tensor) -> int:
    """The number of classes of ``model`` by one call; layers that normalise by batch statistics are refused by their name."""
    for path, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.running_mean is None or layer.running_var is None):
            raise ModelError(
                "a layer normalises with the statistics of the batch even in eval mode",
                where=path or type(model).__name__,
                got=f"{type(layer).__name__} without running statistics",
                wanted="a network that treats each input alone",
                fix="track_running_stats=True, or GroupNorm or LayerNorm",
            )
    try:
        return int(checked_scores(model, example).shape[1])
    except ValueError as error:  # what torch raises where statistics of a batch are asked of one row
        raise ModelError(
            "the network cannot be run on one input",
            where=type(model).__name__,
            got=error,
            wanted="a network that treats each input alone",
            fix="replace what needs several inputs, such as batch statistics",
        ) from error


_LOW = (1 << 64) - 1


class NoisyRows:
    """Draws ``after`` to ``draws`` of each input, input by input: row r is draw ``after + r % span`` of input ``r // span``.

    A row is (stored + noise) / levels in float32, the sum exact and the quotient correctly rounded: a function of the stored
    input plus grid noise, and the same to the bit on every device and in every batch.
    """

    def __init__(
        self, noise: GridNoise, key: Key, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0
    ) -> None:
        """``stored`` holds one row of levels for each of ``indices``, on the device on which the rows are wanted."""
        self.noise, self.after, self.span = noise, after, draws - after
        self.stored = stored.reshape(len(indices), -1).contiguous()
        self.dimension = int(self.stored.shape[1])
        self.streams = [Stream.named(key, purpose, index) for index in indices]
        self.fill: Callable[[int, Tensor], None] = self._fill_on_host
        if stored.device.type == "cuda":
            self.fill = self._kernel() or self._fill_through_host

    def __len__(self) -> int:
        return len(self.streams) * self.span

    def owners(self, first: int, count: int) -> Tensor:
        """Which input, by position, each of ``count`` rows from ``first`` on belongs to."""
        rows = torch.arange(first, first + count, device=self.stored.device)
        return rows.div_(self.span, rounding_mode="floor")

    def _fill_on_host(self, first: int, out: Tensor) -> None:
        """Writes rows ``first`` onwards into ``out`` (rows, dimension)."""
        rows, stored = out.numpy(), self.stored.cpu().numpy()
        table, grid, levels = self.noise.table, np.float32(self.noise.grid), np.float32(self.noise.levels)
        done = 0
        while done < len(rows):
            owner, place = divmod(first + done, self.span)
            here = rows[done : done + self.span - place]
            for part in write_noise(table, self.streams[owner], self.after + place, here):
                if grid != 1:
                    part *= grid
                part += stored[owner]
                if levels != 1:
                    part /= levels
            done += len(here)

    def _fill_through_host(self, first: int, out: Tensor) -> None:
        made = torch.empty(out.shape, dtype=torch.float32)
        self._fill_on_host(first, made)
        out.copy_(made)

    def _kernel(self) -> Callable[[int, Tensor], None] | None:
        """The same on a GPU; None where Triton kernels do not run."""
        device = self.stored.device
        if not kernels_run(device):
            return None
        from twinproof.certification.noise_kernel import write_noisy_rows

        keys = torch.from_numpy(_cipher_keys(self.streams)).to(device)
        tables = _tables_on(self.noise, device)

        def fill(first: int, out: Tensor) -> None:
            # Triton launches on the current GPU, which need not be the one of the tensors.
            with torch.cuda.device(device):
                write_noisy_rows(
                    out,
                    self.stored,
                    keys,
                    tables,
                    row=first,
                    span=self.span,
                    after=self.after,
                    width=padded(self.dimension),
                    steps=self.noise.steps,
                    grid=self.noise.grid,
                    levels=self.noise.levels,
                    laplace=self.noise.law is Law.LAPLACE,
                )

        return fill


def _cipher_keys(streams: Sequence[Stream]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Four 64-bit numbers for each stream, the lower half of each cipher key first; signed, because torch has no others."""
    halves = [
        (stream.words & _LOW, stream.words >> 64, stream.refinement & _LOW, stream.refinement >> 64) for stream in streams
    ]
    return np.array(halves, dtype=np.uint64).view(np.int64)


@lru_cache(maxsize=2)
def _tables_on(noise: GridNoise, device: torch.device) -> tuple[Tensor, Tensor]:
    table = noise.table
    high, whole = table.high_words.view(np.int32), table.boundaries.view(np.int64)
    return torch.from_numpy(high).to(device), torch.from_numpy(whole).to(device)


class RowStatistic(ABC):
    """Turns a network's outputs into whole numbers that add up exactly in every order, batch and on every device.

    ``resolution`` is the number that a class gets where it gets everything. A row's numbers depend on that row's outputs
    alone, lie between 0 and ``resolution`` and add up to at most ``resolution`` over the classes. A row with a NaN counts for
    no class, which can only lower a radius.
    """

    resolution: ClassVar[int]

    @abstractmethod
    def empty(self, inputs: int, classes: int, device: torch.device) -> Tensor:
        """Sums of no rows: int64, one row for each input."""

    @abstractmethod
    def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
        """Adds rows of ``outputs`` (rows, classes) in place; ``owners`` says which input each belongs to; it is overwritten."""

    @abstractmethod
    def moments(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, classes) sums, and sums of squares."""


class Votes(RowStatistic):
    """1 for the class with the largest output: the mean is the probability that the network answers so."""

    resolution = 1

    def empty(self, inputs: int, classes: int, device: torch.device) -> Tensor:
        return torch.zeros((inputs, classes), dtype=torch.int64, device=device)

    def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
        """One number for each row, not one for each row and class: counting stays a small part of the work."""
        place = owners.mul_(outputs.shape[1]).add_(outputs.argmax(dim=1))
        sums.view(-1).scatter_add_(0, place, outputs.isnan().any(dim=1).logical_not_().to(torch.int64))

    def moments(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """A vote is its own square."""
        return sums, sums


class Scores(RowStatistic):
    """The softmax of the outputs, floored to multiples of 2^-20: the mean is the expected score.

    Floored scores add up to at most 1: in float64 the softmax of up to a billion classes adds up to less than 1 + 2^-20. The
    floor is part of the classifier, so that a certificate speaks of exactly these numbers.
    """

    resolution = 2**20

    def empty(self, inputs: int, classes: int, device: torch.device) -> Tensor:
        """The scores' columns, then those of their squares."""
        return torch.zeros((inputs, 2 * classes), dtype=torch.int64, device=device)

    def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
        shares = torch.softmax(outputs.double(), dim=1)
        # Outputs that are infinite twice have no softmax either.
        shares = torch.where(shares.isnan().any(dim=1, keepdim=True), 0.0, shares)
        units = (shares * self.resolution).floor().to(torch.int64)
        sums.index_add_(0, owners, torch.cat((units, units * units), dim=1))

    def moments(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves."""
        classes = sums.shape[1] // 2
        return sums[:, :classes], sums[:, classes:]


VOTES = Votes()
_ALL: dict[str, RowStatistic] = {Statistic.VOTES: VOTES, Statistic.SCORES: Scores()}


def row_statistic(name: str) -> RowStatistic:
    """The statistic of that name (``Method.statistic``)."""
    return _ALL[name]


# The largest batch whose numbers a GPU's kernel can count with 32 bits.
_MOST_COUNTED = 2**30


class Counter(Protocol):
    """Counts votes: with noise of each input's own, or shared by the inputs of a call."""

    @property
    def statistic(self) -> RowStatistic:
        """What a draw counts."""

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """Sums, one row for each input, of the draws numbered ``after`` to ``draws``; ``statistic.moments`` reads them."""


@dataclass(frozen=True)
class VoteCounter:
    """Draws noise, runs the network, counts votes; or adds up what another ``statistic`` makes of its outputs.

    Guarantees
        The noise of draw j for input i depends on (key, purpose, i, j) alone: not on the device, the batch, its order or its
        size. Two inputs never share noise. A draw whose scores hold a NaN votes for no class, which can only lower a radius.
        Memory does not grow with the number of draws. What a network draws besides, in layers of ours, depends on the key and
        the batch, so that the same call gives the same sums.
    """

    model: nn.Module
    noise: GridNoise
    classes: int
    key: Key
    rows: int
    statistic: RowStatistic = VOTES

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """See ``Counter``; ``stored`` holds what the noise is added to, and draws before ``after`` were counted earlier."""
        source = NoisyRows(self.noise, self.key, purpose, indices, stored, draws, after=after)
        shape, device = stored.shape[1:], stored.device
        rows, random = min(self.rows, max(1, _MOST_COUNTED // source.dimension)), draws_noise(self.model)

        def sums_of(starts: Sequence[int]) -> Tensor:
            """The sums of the batches that begin at these rows, made in a buffer that is used again and again."""
            sums = self.statistic.empty(len(indices), self.classes, device)
            buffer = torch.empty(min(rows, len(source)), source.dimension, dtype=torch.float32, device=device)
            for start in starts:
                batch = buffer[: len(source) - start]
                source.fill(start, batch)
                with repeatable(device, self.key, purpose, indices[0], after, start) if random else nullcontext():
                    outputs = checked_scores(self.model, batch.view(-1, *shape), self.classes)
                self.statistic.add(sums, source.owners(start, len(batch)), outputs)
            return sums

        return each_batch(sums_of, range(0, len(source), rows), self.model, device, one_by_one=random)
