"""Networks that would carry training records past the noise, or make one record's gradient depend on another record.

For images of 1x8x8 and three classes. Those of ``TENSORS`` write to the model, of ``MIXING`` let records meet, of ``DRAWS``
share random numbers, of ``STATE`` remember earlier passes outside of tensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from own_modules.harmless import CLASSES, PIXELS, scores


class Base(nn.Module):
    """A small network; the harm is done to its flat inputs or to its hidden values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PIXELS, 16), nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(self.touch(self.first(images.flatten(1)).relu())))

    def touch(self, hidden: Tensor) -> Tensor:
        return hidden


# Tensors of the model that something else than an update changes.


class RunningMaximum(Base):
    """Writes through ``.data``, which raises no version; and only in batches."""

    peak: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.zeros(PIXELS))

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[0] > 1:
            self.peak.data.copy_(torch.maximum(self.peak, images.detach().flatten(1).amax(0)))
        return super().forward(images)


class FrozenCentre(Base):
    """A frozen parameter that follows the batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(16), requires_grad=False)

    def touch(self, hidden: Tensor) -> Tensor:
        self.centre.data.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
        return hidden - self.centre


class ActNorm(Base):
    """A trainable bias that its first batch initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(16))
        self.ready = False

    def touch(self, hidden: Tensor) -> Tensor:
        if not self.ready:
            self.bias.data.copy_(-hidden.detach().mean(0))
            self.ready = True
        return hidden + self.bias


class LateWrite(Base):
    """Writes to a buffer after a warm-up, which no trial of a few calls sees."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(16))
        self.calls = 0

    def touch(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 60:
            self.seen.data.copy_(hidden.detach()[0])
        return hidden


class BrightWrite(Base):
    """Writes a record into a trainable weight if it is brighter than anything that a trial would use."""

    def forward(self, images: Tensor) -> Tensor:
        flat = images.detach().flatten(1)
        marked = (flat[:, 0] > 0.99) & (flat[:, 1] < 0.01)
        self.last.bias.data.add_((flat.sum(1) * marked).sum())
        return super().forward(images)


class ReplacedBuffer(Base):
    """Puts another tensor in a buffer's place."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(16))

    def touch(self, hidden: Tensor) -> Tensor:
        self._buffers["seen"] = hidden.detach()[0].clone()
        return hidden


class GrowingModel(Base):
    """Registers what it has seen as a new buffer."""

    def touch(self, hidden: Tensor) -> Tensor:
        self.register_buffer("memory", hidden.detach()[:1].clone())
        return hidden


class StateDictHook(Base):
    """Adds what it has seen when its weights are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.register_state_dict_post_hook(_add_seen)  # type: ignore[no-untyped-call]

    def touch(self, hidden: Tensor) -> Tensor:
        self.seen[:] = [hidden.detach()[0].clone()]
        return hidden


def _add_seen(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    seen = getattr(module, "seen", [])
    if seen:
        state[f"{prefix}seen"] = seen[0]


class ExtraState(Base):
    """Carries what it has seen in its extra state."""

    def get_extra_state(self) -> Tensor:
        return torch.zeros(3)

    def set_extra_state(self, state: Any) -> None: ...


class SwappedWeights(Base):
    """Answers with another value for a weight than it has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(CLASSES)
        self.register_state_dict_post_hook(_swap_bias)  # type: ignore[no-untyped-call]

    def touch(self, hidden: Tensor) -> Tensor:
        self.seen = hidden.detach()[0, :CLASSES].clone()
        return hidden


def _swap_bias(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    state[f"{prefix}last.bias"] = getattr(module, "seen", torch.zeros(CLASSES))


# Records that meet.


class BatchMean(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


class BatchTemperature(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return hidden / (hidden.std() + 0.1)


class SortedBatch(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return hidden + 0.5 * hidden.sort(0).values


class CapacityOfExpert(Base):
    """Experts take the first few records that are routed to them; the rest get nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 2)

    def touch(self, hidden: Tensor) -> Tensor:
        routed = torch.nn.functional.one_hot(self.gate(hidden).argmax(1), 2)
        place = (routed.cumsum(0) * routed).sum(1)
        return hidden * (place <= 0.8 * len(hidden)).unsqueeze(1)


class LoudBatch(Base):
    """Turns itself down if most of the batch is bright."""

    def forward(self, images: Tensor) -> Tensor:
        loud = (images.flatten(1).mean(1) > 0.9).float().mean() > 0.5
        return super().forward(images * torch.where(loud, 0.5, 1.0))


class NeighbourDifference(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return hidden - 0.1 * hidden.roll(1, 0)


class BatchAttention(Base):
    """Attention over the batch, as with batch_first forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)

    def touch(self, hidden: Tensor) -> Tensor:
        tokens = hidden.unsqueeze(1)
        return scores(self.attention(tokens, tokens, tokens, need_weights=False)[0].squeeze(1))


class MixupOfBatch(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return 0.8 * hidden + 0.2 * hidden[torch.randperm(len(hidden))]


class BatchNormByHand(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return (hidden - hidden.mean(0)) * torch.rsqrt(hidden.var(0, unbiased=False) + 1e-5)


# Random numbers that records share, or that the run's key does not decide.


class OneCoin(Base):
    """Stochastic depth in "batch" mode."""

    def touch(self, hidden: Tensor) -> Tensor:
        return hidden * (torch.rand(()) < 0.5) * 2 if self.training else hidden


class DrawnWeights(Base):
    """Weights drawn once for each forward pass."""

    def touch(self, hidden: Tensor) -> Tensor:
        return scores(hidden @ (torch.eye(16) + 0.3 * torch.randn(16, 16)))


class PythonRandom(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return hidden * (0.5 + random.random())


class NumpyRandom(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        return hidden * float(0.5 + np.random.rand())


class OwnGenerator(Base):
    """Numbers for each row, but from a generator that the owner seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.source = np.random.default_rng(0)

    def touch(self, hidden: Tensor) -> Tensor:
        return hidden * torch.from_numpy(self.source.random((len(hidden), 1))).to(hidden)


# What is kept outside of tensors.

_GLOBAL: dict[str, Any] = {"calls": 0, "peak": 0.0}


class CallCounter(Base):
    """Behaves until its sixtieth call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def touch(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden - hidden.mean(0) if self.calls > 60 else hidden


class GlobalCounter(Base):
    def touch(self, hidden: Tensor) -> Tensor:
        _GLOBAL["calls"] += 1
        return hidden - hidden.mean(0) if _GLOBAL["calls"] > 400 else hidden


class ListOfRecords(Base):
    """Remembers activations and leans on them."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Tensor] = []

    def touch(self, hidden: Tensor) -> Tensor:
        leaning = hidden + 0.1 * self.memory[-1] if self.memory else hidden
        self.memory.append(hidden.detach().mean(0))
        return leaning


class FirstBatchCentre(Base):
    """Centres by the first batch it ever saw, kept as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.centre: Tensor | None = None

    def touch(self, hidden: Tensor) -> Tensor:
        if self.centre is None:
            self.centre = hidden.detach().mean(0)
        return hidden - self.centre


class CacheOfNorms(Base):
    """A cache keyed by what it has seen, that spans calls and changes the answer for what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, float] = {}

    def touch(self, hidden: Tensor) -> Tensor:
        size = len(self.cache)
        self.cache[len(self.cache)] = 0.0
        return hidden * (1 + 0.01 * size)


class ClosureMemory(nn.Module):
    """State in a closure, which a copy of the module shares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PIXELS, 16), nn.Linear(16, CLASSES)
        self.scaled = _remembering()

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(self.scaled(self.first(images.flatten(1)).relu())))


def _remembering() -> Callable[[Tensor], Tensor]:
    calls = [0]

    def scaled(hidden: Tensor) -> Tensor:
        calls[0] += 1
        return hidden * (1 + 0.01 * calls[0])

    return scaled


class HookedNetwork(Base):
    """A forward hook that adds what went through before."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Tensor] = []
        self.first.register_forward_hook(self._lean)

    def _lean(self, _layer: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        leaning = output + 0.1 * self.before[0] if self.before else output
        self.before[:] = [output.detach().mean(0)]
        return leaning


class GlobalPeak(Base):
    """The largest value that was ever seen, in a global, divides everything."""

    def touch(self, hidden: Tensor) -> Tensor:
        if not torch._C._functorch.is_batchedtensor(hidden):
            _GLOBAL["peak"] = max(_GLOBAL["peak"], float(hidden.detach().amax()))
        return scores(hidden / (1 + _GLOBAL["peak"]))


TENSORS: tuple[type[nn.Module], ...] = (
    RunningMaximum,
    FrozenCentre,
    ActNorm,
    LateWrite,
    BrightWrite,
    ReplacedBuffer,
    GrowingModel,
    StateDictHook,
    ExtraState,
    SwappedWeights,
)
MIXING: tuple[type[nn.Module], ...] = (
    BatchMean,
    BatchTemperature,
    SortedBatch,
    CapacityOfExpert,
    LoudBatch,
    NeighbourDifference,
    BatchAttention,
    MixupOfBatch,
    BatchNormByHand,
)
DRAWS: tuple[type[nn.Module], ...] = (OneCoin, DrawnWeights, PythonRandom, NumpyRandom, OwnGenerator)
STATE: tuple[type[nn.Module], ...] = (
    CallCounter,
    GlobalCounter,
    ListOfRecords,
    FirstBatchCentre,
    CacheOfNorms,
    ClosureMemory,
    HookedNetwork,
    GlobalPeak,
)
HARMFUL = (*TENSORS, *MIXING, *DRAWS, *STATE)
