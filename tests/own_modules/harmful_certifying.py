"""Networks that are no function of one input: votes of theirs would prove nothing, so the certifier must refuse them.

Each takes rows of 6 numbers and gives 3 scores. ``HARMFUL`` says, by name, how to make one and what the refusal must mention.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES, CLASSES = 6, 3
MIXES, SHARES, CHANGES = "depends on the other inputs", "share random numbers", "changes while it is used"
# State outside of every module.
_SEEN: list[int] = []


class Base(nn.Module):
    """A hidden layer and an output layer; what is harmful happens between them, in ``hidden``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 3)."""
        scores: Tensor = self.last(self.hidden(torch.tanh(self.first(x))))
        return scores

    def hidden(self, h: Tensor) -> Tensor:
        """(rows, 8) to (rows, 8)."""
        return h


class DrawnWeights(nn.Module):
    """A last layer whose weights are drawn once for a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.ones(CLASSES, 8))

    def forward(self, h: Tensor) -> Tensor:
        """Scores by these weights."""
        return h @ (self.weight + torch.randn_like(self.weight)).T


class BayesianLast(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last = DrawnWeights()  # type: ignore[assignment]


class CoinPerPass(Base):
    """Stochastic depth that skips a block for the whole batch."""

    def hidden(self, h: Tensor) -> Tensor:
        return h if bool(torch.rand(()) < 0.5) else -h


class RareCoin(Base):
    """The same, for one pass in ten thousand."""

    def hidden(self, h: Tensor) -> Tensor:
        return -h if bool(torch.rand(()) < 1e-4) else h


class BatchNoise(Base):
    """One noise vector for all rows."""

    def hidden(self, h: Tensor) -> Tensor:
        return h + torch.randn(8)


class ShuffledFeatures(Base):
    """One order of the features for all rows."""

    def hidden(self, h: Tensor) -> Tensor:
        return h[:, torch.randperm(8)]


class HiddenSharing(Base):
    """As many random numbers as rows, and then their mean for all of them."""

    def hidden(self, h: Tensor) -> Tensor:
        return h * torch.where(torch.rand(len(h)).mean() < 0.5, -1.0, 1.0)


class SharedInBlocks(Base):
    """One random number for each block of sixteen rows."""

    def hidden(self, h: Tensor) -> Tensor:
        blocks = torch.randn((len(h) + 15) // 16, 1)
        return h + blocks.repeat_interleave(16, dim=0)[: len(h)]


class PythonCoin(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h if random.random() < 0.5 else -h


class NumpyScale(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h * float(np.random.uniform(0.5, 2))


class BatchStatistics(Base):
    """BatchNorm on the statistics of the batch, and dropout that hides it from a comparison of two calls."""

    def hidden(self, h: Tensor) -> Tensor:
        maps = h.view(len(h), 2, 4)
        return F.dropout(F.batch_norm(maps, None, None, training=True).flatten(1), 0.3, training=True)


class OneRowFails(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return F.batch_norm(h, None, None, training=True)


class BatchMeanVote(Base):
    """The batch votes, behind a common offset."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return scores.mean(dim=0, keepdim=True).expand_as(scores) + 200


class MajorityVote(Base):
    """Every row gets the answer of most rows."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        votes = F.one_hot(scores.argmax(dim=1), CLASSES).sum(dim=0)
        return F.one_hot(votes.argmax(), CLASSES).expand_as(scores).to(scores.dtype)


class TinyMixing(Base):
    """Mixing in scores that are tiny beside their offset: rounding would excuse every difference but those of answers."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return (scores - scores.mean(dim=0)).sign() + 1e6


class BatchScale(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h / h.abs().max()


class Capacity(Base):
    """An expert with room for four rows of a batch."""

    def hidden(self, h: Tensor) -> Tensor:
        taken = (h[:, 0] > 0).cumsum(dim=0) <= 4
        return torch.where((taken & (h[:, 0] > 0))[:, None], 3 * h, h)


class BatchAttention(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return (h @ h.T).softmax(dim=1) @ h


class RolledRows(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h.roll(1, dims=0)


class LargeBatches(Base):
    """Mixes only where more rows come than any trial of a few rows would try."""

    def hidden(self, h: Tensor) -> Tensor:
        return h - h.mean(dim=0) if len(h) > 60 else h


class Hooked(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda layer, given, made: made - made.mean(dim=0))


class RunningMean(Base):
    """A buffer that moves with every pass, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.mean: Tensor

    def hidden(self, h: Tensor) -> Tensor:
        self.mean.data.copy_(0.9 * self.mean + 0.1 * h.mean(dim=0))
        return h - self.mean


class RunningMaximum(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(()))
        self.most: Tensor

    def hidden(self, h: Tensor) -> Tensor:
        self.most.data.clamp_(min=float(h.max()))
        return h / (1 + self.most)


class MovingBias(Base):
    """A parameter that each pass changes a little."""

    def hidden(self, h: Tensor) -> Tensor:
        self.last.bias.data.add_(1e-7)
        return h


class LateCalls(Base):
    """Another network after fifty calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def hidden(self, h: Tensor) -> Tensor:
        self.calls += 1
        return -h if self.calls > 50 else h


class GlobalCalls(Base):
    """The same, counted where no module shows it."""

    def __init__(self) -> None:
        super().__init__()
        _SEEN.clear()

    def hidden(self, h: Tensor) -> Tensor:
        _SEEN.append(len(h))
        return -h if len(_SEEN) > 50 else h


class LastCall(Base):
    """Adds what the call before has left."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: list[Tensor] = []

    def hidden(self, h: Tensor) -> Tensor:
        before = self.cache[-1] if self.cache else torch.zeros(8)
        self.cache = [h.mean(dim=0)]
        return h + before


class FirstCall(Base):
    """Centres by the first rows that it sees, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.centre: Tensor | None = None

    def hidden(self, h: Tensor) -> Tensor:
        if self.centre is None:
            self.centre = h.mean(dim=0)
        return h - self.centre


class GrowingLog(Base):
    """Nothing depends on it yet: the list only grows."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[float] = []

    def hidden(self, h: Tensor) -> Tensor:
        self.log.append(float(h[0, 0]))
        return h


def _coin() -> Callable[[], float]:
    generator = torch.Generator().manual_seed(5)

    def toss() -> float:
        return float(torch.rand((), generator=generator))

    return toss


class HiddenGenerator(Base):
    """A coin of each pass from a generator that nobody can find."""

    def __init__(self) -> None:
        super().__init__()
        self.coin = _coin()

    def hidden(self, h: Tensor) -> Tensor:
        return h if self.coin() < 0.5 else -h


@dataclass(frozen=True)
class Harmful:
    """How to make one, what its refusal says, and the layer that it names where it can."""

    make: Callable[[], nn.Module]
    says: str
    layer: str | None = None


HARMFUL: dict[str, Harmful] = {
    "weights drawn once per pass": Harmful(BayesianLast, SHARES, "last"),
    "one coin per pass": Harmful(CoinPerPass, SHARES),
    "a rare coin per pass": Harmful(RareCoin, SHARES),
    "one noise vector per pass": Harmful(BatchNoise, SHARES),
    "one order of features per pass": Harmful(ShuffledFeatures, SHARES),
    "the mean of numbers per row": Harmful(HiddenSharing, SHARES),
    "one number per block of rows": Harmful(SharedInBlocks, SHARES),
    "a coin of Python": Harmful(PythonCoin, SHARES),
    "a number of NumPy": Harmful(NumpyScale, SHARES),
    "batch statistics and dropout": Harmful(BatchStatistics, MIXES),
    "batch statistics of single numbers": Harmful(OneRowFails, "cannot be run on one input"),
    "vote by the batch mean, scores + 200": Harmful(BatchMeanVote, MIXES),
    "vote by the majority": Harmful(MajorityVote, MIXES),
    "mixing far below an offset": Harmful(TinyMixing, MIXES),
    "scaled by the batch": Harmful(BatchScale, MIXES),
    "an expert with a capacity": Harmful(Capacity, MIXES),
    "attention over the batch": Harmful(BatchAttention, MIXES),
    "rows rolled by one": Harmful(RolledRows, MIXES),
    "mixing in large batches only": Harmful(LargeBatches, MIXES),
    "a hook that mixes": Harmful(Hooked, MIXES),
    "running mean": Harmful(RunningMean, CHANGES),
    "running maximum": Harmful(RunningMaximum, CHANGES),
    "a bias that moves": Harmful(MovingBias, CHANGES, "last.bias"),
    "calls > 50, an attribute": Harmful(LateCalls, CHANGES),
    "calls > 50, a global": Harmful(GlobalCalls, CHANGES),
    "what the last call left": Harmful(LastCall, CHANGES),
    "what the first call left": Harmful(FirstCall, CHANGES),
    "a growing list": Harmful(GrowingLog, CHANGES, "GrowingLog.log"),
    "a coin of a hidden generator": Harmful(HiddenGenerator, CHANGES),
}
