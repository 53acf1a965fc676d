"""The moving average of the weights: what a run releases where averaging is on.

Noise that DP-SGD adds in one step is still in the weights of the next ones, and no later step takes it out on purpose. An
average over many steps does: the signal of the gradients is in all of them, the noise of each in few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError


class WeightAverage:
    """Weights of all steps, each counted ``decay`` times as much as that of the step after it; the counts add up to 1.

    With w_1, w_2, ... the weights after each step, the average after t steps is the sum of decay^(t-i) w_i over the sum of
    decay^(t-i), i = 1..t. The initial weights, which are random, are in none of it. It is kept in the weights' own dtype, on
    their device; numbers that are no trained parameters (buffers) are not averaged.

    Guarantees
        - A function of the released iterates of the private steps and of nothing else: post-processing, which costs no
          privacy and changes no number of the plan.
        - The training goes on from the last weights, to the same bits as without an average.
        - Average and step number are its whole state: a resumed run ends with the same bits.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError("this is no moving average", where="averaging", got=decay, wanted="at least 0 and below 1")
        self._decay = decay
        named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._names = list(named)
        self._weights: list[Tensor] = list(named.values())
        self._average = [value.detach().clone() for value in self._weights]

    @torch.no_grad()
    def add(self, done: int) -> None:
        """Takes in the weights after ``done`` steps, 1 or more; each number once, in order."""
        # In the first step the share is exactly 1, so that what the average was before does not matter.
        share = (1 - self._decay) / (1 - self._decay**done)
        torch._foreach_lerp_(self._average, self._weights, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the network has the averaged weights; afterwards its own again, to the bit and at the same addresses."""
        with torch.no_grad():
            own = [value.detach().clone() for value in self._weights]
            torch._foreach_copy_(self._weights, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, own)

    def state(self) -> dict[str, Tensor]:
        """The average by the names of the parameters, for a checkpoint."""
        return dict(zip(self._names, self._average, strict=True))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint's average; KeyError where a parameter is missing in it, and nothing changed."""
        found = [state[name] for name in self._names]
        for value, stored in zip(self._average, found, strict=True):
            value.copy_(stored)
