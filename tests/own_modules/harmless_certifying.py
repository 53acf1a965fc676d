"""Networks with randomness, caches or records of their own that harm no certificate: each row has its own numbers.

Each takes rows of 6 numbers and gives 3 scores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from own_modules.harmful_certifying import CLASSES, FEATURES, Base


class AlwaysDropout(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.3, training=True)


class StochasticDepthPerRow(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h + torch.relu(h) * torch.bernoulli(torch.full((len(h), 1), 0.5))


class RowNoise(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h + 0.2 * torch.randn_like(h)


class Sampled(Base):
    """A Gumbel softmax and a draw of a class per row."""

    def hidden(self, h: Tensor) -> Tensor:
        chosen = torch.multinomial(h.softmax(dim=1), 1)
        return F.gumbel_softmax(h) + F.one_hot(chosen[:, 0], 8)


class OwnGenerator(Base):
    """Noise for each row from a generator that the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def hidden(self, h: Tensor) -> Tensor:
        return h + 0.2 * torch.randn(h.shape, generator=self.generator)


class SeededProjection(Base):
    """The same random matrix in every pass: a constant."""

    def hidden(self, h: Tensor) -> Tensor:
        return h @ torch.randn(8, 8, generator=torch.Generator().manual_seed(4))


class LazyTable(Base):
    """A table that is computed in the first call and depends on no input, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def hidden(self, h: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(8).cos()
        return h * self.table


class RecordsAttention(Base):
    """Keeps its last attention map to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.seen: Tensor | None = None

    def hidden(self, h: Tensor) -> Tensor:
        tokens = h.view(len(h), 2, 4)
        made, self.seen = self.attention(tokens, tokens, tokens)
        flat: Tensor = made.flatten(1)
        return flat


class DroppedEmbedding(Base):
    """Dropout on a tensor without rows, switched off in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.drop = nn.Parameter(torch.ones(1, 8)), nn.Dropout(0.5)

    def hidden(self, h: Tensor) -> Tensor:
        dropped: Tensor = self.drop(self.place)
        return h + dropped


class Experts(Base):
    """Routes each row to one of two experts, however many rows go there."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def hidden(self, h: Tensor) -> Tensor:
        out, route = torch.zeros_like(h), h[:, 0] > 0
        for chosen, expert in zip((route, ~route), self.experts, strict=True):
            out[chosen] = expert(h[chosen])
        return out


class WeightNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.last)


class SpectralNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.last)


class Recurrent(Base):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(2, 8, batch_first=True)

    def hidden(self, h: Tensor) -> Tensor:
        steps: Tensor = self.cell(h.view(len(h), 4, 2))[0]
        return steps[:, -1]


class LargeOffset(Base):
    """Scores that are small beside what is common to them."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return scores + 1e5


class TinyScores(Base):
    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return 1e-9 * scores


class HalfInside(Base):
    def hidden(self, h: Tensor) -> Tensor:
        return h.to(torch.bfloat16).to(torch.float32)


class Uncopied(Base):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def _plain_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, CLASSES))


def _scripted() -> nn.Module:
    return torch.jit.script(_plain_dropout())


def _compiled() -> nn.Module:
    made: object = torch.compile(HalfInside(), backend="eager")
    assert isinstance(made, nn.Module)
    return made


HARMLESS: dict[str, Callable[[], nn.Module]] = {
    "dropout in eval mode": AlwaysDropout,
    "stochastic depth per row": StochasticDepthPerRow,
    "noise per row": RowNoise,
    "samples per row": Sampled,
    "its own generator, per row": OwnGenerator,
    "a constant made by a seed": SeededProjection,
    "a table of the first call": LazyTable,
    "keeps its attention map": RecordsAttention,
    "dropout on an embedding, switched off": DroppedEmbedding,
    "experts without a capacity": Experts,
    "weight norm": WeightNorm,
    "spectral norm": SpectralNorm,
    "a recurrent cell": Recurrent,
    "scores with a large offset": LargeOffset,
    "tiny scores": TinyScores,
    "bfloat16 inside": HalfInside,
    "a module that cannot be copied": Uncopied,
    "dropout of torch": _plain_dropout,
    "TorchScript": _scripted,
    "a graph of torch.fx": lambda: torch.fx.symbolic_trace(HalfInside()),
    "compiled": _compiled,
}
