"""Votes with noise that the inputs of a call share: the first layer is evaluated once for the noise, not once for each input.

Guarantees
    Each input's votes have the law that they would have with noise of its own: draws are fresh for each purpose and number,
    the network is evaluated at a function of input plus noise (``exact_first_layer`` proves it), and the bound speaks of one
    input at a time. Each certificate alone fails with probability at most alpha. What changes is that failures of different
    inputs are no longer independent of each other, so that averages over inputs are surer of themselves than they should be.
    The base classifier is the network with the first layer that ``SharedNetwork.base`` describes.
    docs/decisions/0007-equivalent-networks-and-shared-noise.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.certification.base_classifier import number_of_classes, unchanged, unused_copy, watched
from twinproof.certification.exact_first_layer import ExactFirstLayer
from twinproof.certification.fused_pool import ActivationPool, sums
from twinproof.certification.grid_noise import GridNoise, input_noise
from twinproof.certification.layer_list import layers_in_order, runs_as_written
from twinproof.certification.lowering import Lowered, lowered
from twinproof.certification.map_layers import ChannelsLast
from twinproof.certification.noisy_rows import NoisyRows
from twinproof.certification.row_statistic import VOTES, RowStatistic
from twinproof.certification.row_threads import each_batch
from twinproof.errors import ModelError
from twinproof.layers.modes import evaluation_mode
from twinproof.randomness import Key

# Draws whose first layer is kept at a time, and the most rows of one forward pass and numbers after the first layer in it: on a
# CPU as many as stay in the cache, on a GPU as many as leave room in memory.
_PIECE = {"cpu": 128, "cuda": 1024}
_MOST_ROWS = {"cpu": 128, "cuda": 65_536}
_MOST_NUMBERS = {"cpu": 2**20, "cuda": 2**28}


class SharedNetwork(nn.Module):
    """A network cut after its first layer: that layer exact, the rest in its fastest equal form."""

    def __init__(self, first: ExactFirstLayer, rest: Lowered, classes: int) -> None:
        super().__init__()
        self.first, self.rest, self.classes = first, rest, classes
        self.form, self.arithmetic, self.base = rest.form, rest.arithmetic, first.base
        self._head, self._tail = _fused_head(rest)

    def forward(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Scores of input i plus draw j for all i and j, j fastest, from ``first.of_inputs`` and ``first.of_noise``."""
        if self._head is not None:
            maps = self._head.of_sums(inputs, draws)
            scores: Tensor = self._tail(maps)
        else:
            scores = self.rest(sums(inputs, draws))
        if scores.shape != (len(inputs) * len(draws), self.classes):
            raise ModelError(
                "the network does not give one score per class",
                where="shared noise",
                got=f"shape {tuple(scores.shape)}",
                wanted=f"({len(inputs) * len(draws)}, {self.classes})",
            )
        return scores

    def scores_of(self, levels: Tensor) -> Tensor:
        """The base classifier itself: scores of inputs plus noise, given in stored levels."""
        scores: Tensor = self.rest(self.first.of_inputs(levels).to(torch.float32))
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

    Guarantees
        The noise of draw j depends on (key, purpose, j) alone: not on the inputs, their number, the batch or the device.
        Another purpose has other draws. A draw whose scores hold a NaN votes for no class. Memory does not grow with draws.
    """

    network: SharedNetwork
    noise: GridNoise
    key: Key
    rows: int
    statistic: RowStatistic = VOTES

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """Votes (inputs, classes) of the draws numbered ``after`` to ``draws`` of each input; ``stored`` in levels, float32."""
        device, classes = stored.device, self.network.classes
        inputs = self.network.first.of_inputs(stored)
        source = self._source(purpose, stored, draws, after)
        kind = "cuda" if device.type == "cuda" else "cpu"
        rows = max(1, min(_MOST_ROWS[kind], self.rows, _MOST_NUMBERS[kind] // inputs[0].numel()))
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

        votes = each_batch(votes_of, range(0, len(source), piece), self.network, device)
        return self.statistic.counted(votes, classes)

    def _source(self, purpose: str, stored: Tensor, draws: int, after: int) -> NoisyRows:
        """The draws themselves, in stored levels: rows of an input of zeros under the same noise in the unit of one level."""
        levels = input_noise(self.noise.sigma * self.noise.levels, 1, self.noise.law)
        zeros = torch.zeros((1, math.prod(stored.shape[1:])), device=stored.device)
        return NoisyRows(levels, self.key, f"{purpose}-shared", [0], zeros, draws, after=after)


def _fused_head(rest: Lowered) -> tuple[ActivationPool | None, nn.Module]:
    """Activation and pool at the beginning of the rest, which can read the two summands itself, and what follows."""
    layers = layers_in_order(rest.network)
    if len(layers) > 2 and isinstance(layers[0], ChannelsLast) and isinstance(layers[1], ActivationPool):
        return layers[1], nn.Sequential(*layers[2:])
    return None, rest


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
