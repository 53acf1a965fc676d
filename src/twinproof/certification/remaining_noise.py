"""The part of the noise that a randomly spread layer draws beyond the least it always draws.

Scales S that are drawn at random for every row are certified for the worst draw: the sampler adds noise of the least scales s,
and the network adds, from its own randomness, what is missing to scales S. That part is independent of the input and of the
sampler, so that whatever it does is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from twinproof.layers.noise import Law, Spread
from twinproof.layers.noise.standard_noise import standard_noise
from twinproof.randomness import Key


class RemainingNoise(nn.Module):
    """Adds to rows that have noise of scales s what makes it noise of scales S, freshly drawn from ``spread`` for every row.

    Guarantees
        Given S, the sum has the law of S xi. Proof, for each coordinate: normal numbers of variances s^2 and S^2 - s^2 add up
        to one of variance S^2. Laplace's law of scale S has the characteristic function 1 / (1 + S^2 t^2) = (s^2/S^2 + (1 -
        s^2/S^2) / (1 + S^2 t^2)) / (1 + s^2 t^2): noise of scale s plus, with probability 1 - s^2/S^2, noise of scale S.
        No certificate rests on it; it keeps the network the one that was trained.
    """

    def __init__(self, law: Law, sigma: float, spread: Spread) -> None:
        super().__init__()
        self.law, self.sigma, self.spread = law, sigma, spread

    def forward(self, x: Tensor) -> Tensor:
        """(rows, *shape) with the rest of their noise."""
        scales: Tensor = self.spread(torch.ones(x.shape, dtype=torch.float32, device=x.device))
        share = (self.spread.least().view(self.spread.shape) / scales).square().clamp(max=1.0)
        drawn = standard_noise(self.law, x.shape, x.device) * scales
        if self.law is Law.GAUSSIAN:
            drawn = drawn * (1 - share).sqrt()
        else:
            drawn = torch.where(torch.rand_like(share) < share, 0.0, drawn)
        return x + self.sigma * drawn.to(x.dtype)


def draws_noise(network: nn.Module) -> bool:
    """Whether a network draws numbers in layers of ours."""
    return any(isinstance(layer, RemainingNoise) for layer in network.modules())


@contextmanager
def repeatable(device: torch.device, key: Key, purpose: str, *numbers: int) -> Iterator[None]:
    """Inside, torch's generator gives numbers that belong to ``key``, ``purpose`` and ``numbers``; it is put back afterwards.

    Not for several threads at once: they share the generator.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(key.seed(f"{purpose}-spread", *numbers))
        yield
