"""Votes with noise that the inputs of a call share: the first layer is evaluated once for the noise.

W (x + n) = W x + W n holds for real numbers and not for floats: with float sums the network would see something that depends
on x and n separately, and a certificate from it would be false. Here nothing is rounded. Inputs and
noise are integers (multiples of the grid h), and the weights, with the division by the number of levels in them, are rounded
once, before anything is certified, to integer multiples of a power of two q.

Guarantees
    ``of_inputs(x) + of_noise(n) == of_inputs(x + n)`` to the bit, for every stored input and every noise of the
    ``GridNoise`` that the layer was made for. Proof: in units of q each product is an integer, and all sums and partial
    sums that occur, in whatever order and with or without fused multiply-add, are integers of at most sum |w| * V + |b|, where
    V bounds |x| + |n| in grid steps. That is below 2^53 (checked in integers when the layer is made; numbers beyond V are
    refused), so float64 holds each of them exactly, and scaling by a power of two is exact too. Only sums of products are
    computed: windows are cut out and multiplied as one matrix, because a routine for convolutions may use transforms that
    round.
    Each input's votes have the law that they would have with noise of its own: draws are fresh for each purpose and number,
    the network is evaluated at a function of input plus noise, and the bound speaks of one input at a time. Each certificate
    alone fails with probability at most alpha; failures of different inputs are no longer independent of each other, so that
    averages over inputs vary more than they seem to.

The base classifier is the network with the rounded weights. They are moved by at most ``2^-moved_bits`` of the largest one,
never by more than 2^-13 of it, and usually by less than float32 itself resolves.
docs/decisions/0007-equivalent-networks-and-shared-noise.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification.fast_layers import ActivationPool, output_shape, pair, sums
from twinproof.certification.grid_noise import GridNoise, input_noise
from twinproof.certification.lowering import ChannelsLast, Lowered, layers_in_order, lowered, runs_as_written
from twinproof.certification.votes import VOTES, NoisyRows, RowStatistic, number_of_classes, unchanged, unused_copy, watched
from twinproof.compute.devices import each_batch
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.module_state import evaluation_mode

_EXACT = 2**53
# Weights coarser than this share of the largest one would make another network of it.
_COARSEST_BITS = 13
# Numbers of windows cut out at a time.
_MOST_NUMBERS = {"cpu": 2**19, "cuda": 2**26}


class Windows:
    """How the convolution ``layer`` cuts its input of ``shape``."""

    def __init__(self, layer: nn.Conv2d, shape: tuple[int, ...], where: str) -> None:
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise ModelError(
                "shared noise does not know this padding",
                where=where,
                got=f"padding={layer.padding!r}, padding_mode={layer.padding_mode!r}",
                wanted="zeros, their number given",
                fix="certify without shared noise",
            )
        self.kernel, self.stride, self.padding = pair(layer.kernel_size), pair(layer.stride), pair(layer.padding)
        self.dilation, self.groups = pair(layer.dilation), layer.groups
        _, self.height, self.width = output_shape(layer, shape)

    def of(self, maps: Tensor) -> Tensor:
        """All windows of all ``maps`` (rows, channels, height, width), one a row, as views that are copied once."""
        top, left = self.padding
        padded = F.pad(maps, (left, left, top, top)).contiguous()
        size = (len(maps), self.height, self.width, maps.shape[1], *self.kernel)
        row, channel, line, column = padded.stride()
        steps = (row, line * self.stride[0], column * self.stride[1])
        inner = (channel, line * self.dilation[0], column * self.dilation[1])
        return padded.as_strided(size, (*steps, *inner)).reshape(math.prod(size[:3]), -1)


class ExactFirstLayer(nn.Module):
    """``layer`` on inputs of ``shape`` stored levels with noise of ``noise``, in exact arithmetic; ``where`` is for errors."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, shape: tuple[int, ...], noise: GridNoise, where: str) -> None:
        super().__init__()
        self.shape, self.grid = shape, noise.grid
        self.windows = Windows(layer, shape, where) if isinstance(layer, nn.Conv2d) else None
        self.most_noise = float(noise.table.reach)
        weight = layer.weight.detach().double().flatten(1) * (noise.grid / noise.levels)
        bias = torch.zeros(len(weight), device=weight.device) if layer.bias is None else layer.bias.detach()
        self.most = noise.levels / noise.grid + self.most_noise
        whole, self.quantum = _rounded(weight, bias.double(), self.most, where)
        largest = float(weight.abs().max())
        # Measured, not only half a quantum: a layer whose weights are dyadic is not moved at all.
        moved = float((whole[:, :-1] * self.quantum - weight).abs().max())
        self.moved_bits = math.inf if moved == 0 else -math.log2(moved / largest)
        if self.moved_bits < _COARSEST_BITS:
            raise _too_coarse(where, self.moved_bits)
        self.weight = nn.Parameter(whole[:, :-1] * self.quantum, requires_grad=False)
        self.bias = nn.Parameter(whole[:, -1] * self.quantum, requires_grad=False)

    def of_inputs(self, levels: Tensor) -> Tensor:
        """The layer's answer with its bias, float64, for inputs (or inputs plus noise) in stored levels."""
        bias = self.bias if self.windows is None else self.bias[:, None, None]
        return self._sums(levels, self.most) + bias

    def of_noise(self, levels: Tensor) -> Tensor:
        """What noise in stored levels adds to the answer, float64."""
        return self._sums(levels, self.most_noise)

    def _sums(self, levels: Tensor, most: float) -> Tensor:
        steps = levels.double() / self.grid
        if levels.numel() and not float(steps.abs().max()) <= most:
            raise ModelError(
                "numbers are larger than the exact first layer was made for",
                where="shared noise",
                got=f"{float(levels.abs().max()):g} levels",
                wanted=f"at most {most * self.grid:g}",
            )
        if self.windows is None:
            return steps.flatten(1) @ self.weight.T
        per_row = self.windows.height * self.windows.width * self.weight.shape[1] * self.windows.groups
        rows = max(1, _MOST_NUMBERS["cuda" if levels.is_cuda else "cpu"] // per_row)
        # Channels innermost in memory: the order that the layers after it are fastest in.
        parts = (steps[first : first + rows] for first in range(0, len(steps), rows))
        made = torch.cat([self._convolved(part, self.windows) for part in parts])
        return made.view(len(levels), self.windows.height, self.windows.width, -1).permute(0, 3, 1, 2)

    def _convolved(self, maps: Tensor, windows: Windows) -> Tensor:
        """(rows, channels, height, width) to (rows * positions, output channels)."""
        groups = zip(maps.chunk(windows.groups, dim=1), self.weight.chunk(windows.groups), strict=True)
        return torch.cat([windows.of(part) @ weight.T for part, weight in groups], dim=1)


def _rounded(weight: Tensor, bias: Tensor, most: float, where: str) -> tuple[Tensor, float]:
    """Weights and, in the last column, biases as whole multiples of a power of two, and that power.

    ``most`` bounds the size of an input plus noise in grid steps.
    """
    both = torch.cat((weight, bias[:, None]), dim=1)
    if not bool(both.isfinite().all()):
        raise ModelError("a weight is not a finite number", where=where, got="NaN or infinity", wanted="finite weights")
    steps = math.ceil(most)
    largest_sum = float((weight.abs().sum(dim=1) * steps + bias.abs()).max())
    # A factor of two is left for what the rounding of the weights adds.
    quantum = 2.0 ** math.ceil(math.log2(max(largest_sum, 2.0**-500) / (_EXACT / 2)))
    whole = (both / quantum).round()
    # Integers from here on: the check itself must not round.
    for total, constant in zip(*(part.long().abs() for part in (whole[:, :-1], whole[:, -1])), strict=True):
        if int(total.sum()) * steps + int(constant) >= _EXACT:
            raise _too_coarse(where, 0)
    return whole, quantum


def _too_coarse(where: str, bits: float) -> ModelError:
    return ModelError(
        "the first layer cannot be made exact without changing its weights too much",
        where=where,
        got=f"weights that move by 2^-{max(0, math.floor(bits))} of the largest one",
        wanted=f"2^-{_COARSEST_BITS} or less",
        fix="certify without shared noise",
    )


# Draws whose first layer is kept at a time, and the most rows of one forward pass and numbers after the first layer in it: on a
# CPU as many as stay in the cache, on a GPU as many as leave room in memory.
_PIECE = {"cpu": 128, "cuda": 1024}
_MOST_ROWS = {"cpu": 128, "cuda": 65_536}
_MOST_SHARED_NUMBERS = {"cpu": 2**20, "cuda": 2**28}


class SharedNetwork(nn.Module):
    """A network cut after its first layer: that layer exact, the rest in its fastest equal form."""

    def __init__(self, first: ExactFirstLayer, rest: Lowered, classes: int) -> None:
        super().__init__()
        self.first, self.rest, self.classes = first, rest, classes
        self.form, self.arithmetic = rest.form, rest.arithmetic
        # Activation and pool at the beginning of the rest can read the two summands themselves.
        layers = layers_in_order(rest.network)
        fused = len(layers) > 2 and isinstance(layers[0], ChannelsLast) and isinstance(layers[1], ActivationPool)
        self._head: nn.Module | None = layers[1] if fused else None
        self._tail: nn.Module = nn.Sequential(*layers[2:]) if fused else rest

    def forward(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Scores of input i plus draw j for all i and j, j fastest, from ``first.of_inputs`` and ``first.of_noise``."""
        maps = self._head.of_sums(inputs, draws) if isinstance(self._head, ActivationPool) else sums(inputs, draws)
        scores: Tensor = self._tail(maps)
        if scores.shape != (len(inputs) * len(draws), self.classes):
            raise ModelError(
                "the network does not give one score per class",
                where="shared noise",
                got=f"shape {tuple(scores.shape)}",
                wanted=f"({len(inputs) * len(draws)}, {self.classes})",
            )
        return scores


def shared_network(
    model: nn.Module, shape: tuple[int, ...], noise: GridNoise, device: torch.device, rows: int, *, form: str | None = None
) -> SharedNetwork:
    """Cuts ``model``, which lies on ``device``, for inputs of ``shape``; ``form`` as in ``lowered``, for the rest.

    Refuses a network that does not begin with a convolution or a linear layer in plain ``nn.Sequential`` containers.
    """
    own = unused_copy(model)
    layer, rest = _cut(own, shape)
    where = next(path for path, module in own.named_modules() if module is layer)
    with evaluation_mode(own), torch.inference_mode(), unchanged(own):
        first = ExactFirstLayer(layer, shape, noise, where)
        example = first.of_inputs(torch.zeros((1, *shape), device=device)).to(torch.float32)
        made = lowered(rest, tuple(example.shape[1:]), device, rows, form=form, overwrite=True)
        classes = number_of_classes(made, example.clone())
        fresh = None if own is model else _cut(unused_copy(model), shape)[1].eval()
        spread = _spread(first, noise, shape, device)
        return SharedNetwork(first, watched(made, example, spread, classes, fresh), classes)


@dataclass(frozen=True)
class SharedNoiseCounter:
    """Counts votes as ``VoteCounter`` does, all inputs of a call under the same draws.

    The noise of draw j depends on (key, purpose, j) alone: not on the inputs, their number, the batch or the device. Memory
    does not grow with the number of draws.
    """

    network: SharedNetwork
    noise: GridNoise
    key: Key
    rows: int
    statistic: RowStatistic = VOTES

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        device, classes = stored.device, self.network.classes
        inputs = self.network.first.of_inputs(stored)
        source = self._source(purpose, stored, draws, after)
        kind = "cuda" if device.type == "cuda" else "cpu"
        rows = max(1, min(_MOST_ROWS[kind], self.rows, _MOST_SHARED_NUMBERS[kind] // inputs[0].numel()))
        piece = max(1, min(_PIECE[kind], rows, len(source)))
        together = rows // piece

        def votes_of(starts: Sequence[int]) -> Tensor:
            votes = self.statistic.empty(len(indices), classes, device)
            buffer = torch.empty(piece, source.dimension, dtype=torch.float32, device=device)
            for start in starts:
                levels = buffer[: len(source) - start]
                source.fill(start, levels)
                drawn = self.network.first.of_noise(levels.view(-1, *stored.shape[1:]))
                for at in range(0, len(indices), together):
                    outputs = self.network(inputs[at : at + together], drawn)
                    owners = torch.arange(len(outputs), device=device).div_(len(drawn), rounding_mode="floor").add_(at)
                    self.statistic.add(votes, owners, outputs)
            return votes

        return each_batch(votes_of, range(0, len(source), piece), self.network, device)

    def _source(self, purpose: str, stored: Tensor, draws: int, after: int) -> NoisyRows:
        """The draws themselves, in stored levels: rows of an input of zeros under the same noise in the unit of one level."""
        levels = input_noise(self.noise.sigma * self.noise.levels, 1, self.noise.law)
        zeros = torch.zeros((1, math.prod(stored.shape[1:])), device=stored.device)
        return NoisyRows(levels, self.key, f"{purpose}-shared", [0], zeros, draws, after=after)


def _cut(model: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Conv2d | nn.Linear, nn.Sequential]:
    """The first layer and what follows it; a flattening before a linear layer belongs to that layer."""
    layers = layers_in_order(model)
    if not runs_as_written(model):
        raise _no_first_layer(model, "hooks or replaced methods")
    begin = layers[0] if layers else None
    flat = isinstance(begin, nn.Flatten) and (begin.start_dim, begin.end_dim) == (1, -1)
    layer, rest = next(iter(layers[flat:]), None), layers[flat + 1 :]
    known = (type(layer) is nn.Conv2d and not flat) or (type(layer) is nn.Linear and (flat or len(shape) == 1))
    if not known or not rest or not isinstance(layer, nn.Conv2d | nn.Linear):
        raise _no_first_layer(model, ", ".join(type(found).__name__ for found in layers[:3]) or "no layer")
    return layer, nn.Sequential(*rest)


def _spread(first: ExactFirstLayer, noise: GridNoise, shape: tuple[int, ...], device: torch.device) -> float:
    """The deviation of what the noise becomes behind the first layer, roughly: for a trial."""
    drawn = torch.randn((32, *shape), generator=torch.Generator().manual_seed(0)).clamp(-3, 3).to(device)
    return float(first.of_inputs((noise.sigma * noise.levels / noise.grid * drawn).round() * noise.grid).std(dim=0).mean())


def _no_first_layer(model: nn.Module, got: str) -> ModelError:
    return ModelError(
        "shared noise needs a network that begins with a linear layer",
        where=type(model).__name__,
        got=got,
        wanted="nn.Sequential with nn.Conv2d or nn.Linear (after nn.Flatten) first and something after it",
        fix="certify without shared noise",
    )
