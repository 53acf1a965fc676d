"""What a network answers at an input with noise, for noise at the input (equal or not), behind the first layer, or at both.

Written from docs/formats/run.md ("The noise"); the modules are the network's own (``twinproof.layers``), what is done with
them is not shared with ``twinproof.certification``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.auditing.ask_network import at_random
from twinproof.auditing.redraw_noise import CUTS, GAUSSIAN, LAPLACE, MOST_STEPS, Steps
from twinproof.layers.noise import Spread
from twinproof.layers.noise_placement import NoiseSplit, split_at_noise, split_at_two_noises
from twinproof_verify.certificates import BOTH, FIRST_LAYER, INPUT, UNEQUAL_INPUT, WHITENED

Answers = Callable[[Steps], Tensor]
"""From noise in whole steps, (draws, dimension), to the network's outputs, (draws, classes)."""


class CannotRedraw(Exception):
    """Why the votes of a certificate cannot be drawn again."""


@dataclass(frozen=True)
class Noise:
    """What the settings say of the noise, in the words of certificates.json."""

    law: str
    place: str
    sigma: float
    grid: float
    levels: int
    dimension: int

    @classmethod
    def of(cls, settings: dict[str, Any], dimension: str = "dimension") -> Noise:
        """From sound settings; ``dimension`` is the name of the number of coordinates that get noise."""
        sigma, grid = float(settings["sigma"]), float(settings["grid"])
        made = cls(settings["law"], settings["place"], sigma, grid, settings["levels"], settings[dimension])
        if not CUTS[made.law] * made.steps < MOST_STEPS:
            raise CannotRedraw("noise of too many grid steps")
        return made

    @property
    def steps(self) -> float:
        """Grid steps for one deviation."""
        return self.sigma * (1 if self.place in WHITENED else self.levels) / self.grid


class NoisyNetwork:
    """A network as its certificates see it; ``random`` where votes depend on more than the noise of the key."""

    def __init__(self, model: nn.Module, noise: Noise, shape: tuple[int, ...]) -> None:
        """``model`` is in eval mode; its noise layers, if it has any, must be where ``noise`` says."""
        self.noise, self.shape = noise, shape
        two = split_at_two_noises(model)
        split = split_at_noise(model) if two is None else two.hidden
        self._split = split
        self.random = split is not None and split.noise.spread.random
        self.rest: nn.Module = model if split is None else split.after
        place = _place(split) if two is None else BOTH
        law = GAUSSIAN if split is None else str(split.noise.law)
        if (law, place) != (noise.law, noise.place):
            raise CannotRedraw(f"the network's own noise is {law}, {place}")
        inputs = math.prod(shape)
        outputs = 0 if split is None or place == INPUT else math.prod(split.noise.shape)
        wanted = {INPUT: inputs, UNEQUAL_INPUT: inputs, FIRST_LAYER: outputs, BOTH: inputs + outputs}[place]
        if noise.dimension != wanted:
            raise CannotRedraw("dimension is not the number of coordinates that get noise")

    def at(self, stored: NDArray[Any]) -> Answers:
        """The answers at one stored input of the test set."""
        if self._split is None or self.noise.place == INPUT:
            return self._at_input(stored)
        front = _Front(self._split, self.shape)
        return self._behind_layer(front, stored) if self.noise.place in WHITENED else self._at_both(front, stored)

    def try_out(self, stored: NDArray[Any]) -> None:
        """Notes whether the network answers at random without any noise of ours."""
        answers, nothing = self.at(stored), np.zeros((8, self.noise.dimension), dtype=np.int32)
        self.random = self.random or at_random(answers(nothing), answers(nothing))

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.rest.state_dict().values()), torch.device("cpu"))

    def _at_input(self, stored: NDArray[Any]) -> Answers:
        levels, grid = np.float32(self.noise.levels), np.float32(self.noise.grid)
        flat = stored.reshape(-1).astype(np.float32)

        def answers(steps: Steps) -> Tensor:
            rows = (flat + steps.astype(np.float32) * grid) / levels
            return self._outputs(torch.from_numpy(rows).to(self.device).view(-1, *self.shape))

        return answers

    def _behind_layer(self, front: _Front, stored: NDArray[Any]) -> Answers:
        grid = self.noise.grid
        layer = front.whitened(torch.from_numpy(stored.astype(np.float64)[None] / self.noise.levels))
        points = np.rint(layer.numpy()[0] / grid)

        def answers(steps: Steps) -> Tensor:
            rows = torch.from_numpy(((points + steps) * grid).astype(np.float32)).to(self.device)
            return self._outputs(self._rest_of_noise(front.back(rows), front.spread))

        return answers

    def _at_both(self, front: _Front, stored: NDArray[Any]) -> Answers:
        grid, levels, inputs = self.noise.grid, self.noise.levels, math.prod(self.shape)
        flat = stored.reshape(-1).astype(np.float64) / grid
        step = front.deviation / self.noise.steps

        def answers(steps: Steps) -> Tensor:
            noisy = (flat + steps[:, :inputs]) * (grid / levels)
            layer = np.rint(front.whitened(torch.from_numpy(noisy)).numpy() / step)
            rows = torch.from_numpy((layer + steps[:, inputs:]) * step).to(self.device, torch.float32)
            return self._outputs(front.back(rows))

        return answers

    def _rest_of_noise(self, rows: Tensor, spread: Spread) -> Tensor:
        """Adds what scales drawn at random need beyond the least that they can be; fresh numbers, not those of the key."""
        if not spread.random:
            return rows
        scales: Tensor = spread(torch.ones_like(rows))
        least = spread.least().view(spread.shape).to(rows)
        if self.noise.law == LAPLACE:
            # Scale S is scale s plus, with probability 1 - s^2/S^2, an independent number of scale S.
            ends = torch.rand_like(rows).clamp_(min=2.0**-24).log_().mul_(scales)
            signs = torch.where(torch.rand_like(rows) < 0.5, -1.0, 1.0)
            return rows + self.noise.sigma * torch.where(torch.rand_like(rows) < (least / scales) ** 2, 0.0, signs * ends)
        return rows + self.noise.sigma * (scales**2 - least**2).clamp_(min=0).sqrt() * torch.randn_like(rows)

    def _outputs(self, rows: Tensor) -> Tensor:
        outputs = self.rest(rows)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(rows) or outputs.shape[1] < 2:
            raise CannotRedraw("the network does not give one score for each class")
        return outputs


def _place(split: NoiseSplit | None) -> str:
    """Where a network with one noise layer, or none, has its noise, in the words of certificates.json."""
    if split is None or split.before is not None:
        return INPUT if split is None else FIRST_LAYER
    spread = split.noise.spread
    return INPUT if not spread.random and bool((spread.least() == 1).all()) else UNEQUAL_INPUT


class _Front:
    """The first layer W x + b and the scales S of the noise behind it; without a layer, x itself."""

    def __init__(self, split: NoiseSplit, shape: tuple[int, ...]) -> None:
        self.spread, self.shape = split.noise.spread, (math.prod(shape),) if split.flattens else shape
        self.deviation = float(split.noise.deviation)
        self._layer, self._outputs = split.before, split.noise.shape
        self._scales = split.noise.spread.least().detach().view(self._outputs)

    def whitened(self, inputs: Tensor) -> Tensor:
        """S^-1 W x in float64, on the host: (rows, outputs)."""
        layer, rows = self._layer, inputs.view(-1, *self.shape)
        weight = torch.empty(0) if layer is None else layer.weight.detach().cpu().double()
        if layer is None:
            made = rows
        elif isinstance(layer, nn.Linear):
            made = nn.functional.linear(rows, weight)
        else:
            convolve: Callable[..., Tensor] = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[rows.ndim - 3]
            made = convolve(rows, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        return (made.view(-1, *self._outputs) / self._scales.cpu().double()).flatten(1)

    def back(self, rows: Tensor) -> Tensor:
        """S v + b, in the precision of the layer; float32 without one."""
        if self._layer is None:
            return rows.view(-1, *self._outputs) * self._scales.to(rows)
        weight, bias = self._layer.weight, self._layer.bias
        shifted = rows.to(weight.dtype).view(-1, *self._outputs) * self._scales.to(weight)
        return shifted if bias is None else shifted + bias.detach().view(-1, *[1] * (len(self._outputs) - 1))
