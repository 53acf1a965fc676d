"""A step shared by several ranks: sums, ledger, and equal weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from twinproof.compute.ranks import WHOLE, Ranks, Share
from twinproof.privacy.ledger import Entry, Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.training.loop import PlainGradients, PrivateGradients
from twinproof.training.passes import ONE_BY_ONE, Batching, Pass, PassMode
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss
from twinproof.training.step_sums import ClippedSums, StepSums


@dataclass(frozen=True)
class SharedBatching(Batching):
    """Passes of one rank, with the noise that belongs to their numbers among the passes of all ranks."""

    share: Share = WHOLE

    @classmethod
    def of(cls, batching: Batching, share: Share) -> Self:
        """The same records, copies and passes, for one rank."""
        given = (batching.records, batching.augmentation, batching.physical_batch, batching.key, batching.layers_draw)
        return cls(*given, share)

    def seed_augmentation(self, generator: torch.Generator, step: int, number: int) -> None:
        """See :class:`Batching`; ``number`` counts this rank's passes."""
        super().seed_augmentation(generator, step, self.share.number(number))

    @contextmanager
    def layers_seeded(self, step: int, number: int) -> Iterator[None]:
        """See :class:`Batching`; ``number`` counts this rank's passes."""
        with super().layers_seeded(step, self.share.number(number)):
            yield


class OwnPasses(SharedBatching):
    """Batching that cuts all drawn records and serves the passes of one rank."""

    def passes(self, indices: Tensor) -> Iterator[Pass]:
        """See :class:`Batching`."""
        return super().passes(self.share.own(indices, self.physical_batch))


class SharedStepSums(StepSums):
    """Sums over the records that all ranks drew together, each adding up its share by ``inner``.

    Guarantees
        Every drawn record is added by exactly one rank. The result is the same to the bit on all ranks, does not depend on
        timing, and differs between numbers of ranks by the order of float64 additions alone.
    """

    def __init__(self, inner: StepSums, size: int, ranks: Ranks) -> None:
        self._inner = inner
        self._size = size
        self._ranks = ranks

    def of(self, indices: Tensor, step: int) -> ClippedSums:
        """See :class:`StepSums`."""
        part = self._inner.of(self._ranks.share.own(indices, self._size), step)
        # Counts travel in the same message: they are small whole numbers, which float64 holds exactly.
        summed = summed_by_name({**part.by_name, "": part.counts}, self._ranks)
        counts = summed.pop("").to(torch.int64)
        return ClippedSums(summed, counts)


class SharedPrivateGradients(PrivateGradients):
    """Private gradients whose passes are shared out among ranks.

    Guarantees
        Draw, noise and ledger are those of one process: all ranks hold the same key, draw the same records, and add the same
        noise, once, to the same sum. What they release is equal to the bit.
    """

    def __init__(
        self,
        execution: PrivateExecution,
        path: PerExamplePath,
        batching: Batching,
        shapes: Mapping[str, Tensor],
        mode: PassMode = ONE_BY_ONE,
        *,
        ranks: Ranks,
    ) -> None:
        super().__init__(execution, path, SharedBatching.of(batching, ranks.share), shapes, mode)
        self._sums = SharedStepSums(self._sums, batching.physical_batch, ranks)


class SharedPlainGradients(PlainGradients):
    """Ordinary gradients whose passes are shared out among ``ranks``."""

    def __init__(
        self, model: nn.Module, loss: RecordLoss, batching: Batching, *, sample_rate: float, divisor: float, ranks: Ranks
    ) -> None:
        super().__init__(model, loss, OwnPasses.of(batching, ranks.share), sample_rate=sample_rate, divisor=divisor)
        self.ranks = ranks

    def gradient(self, step: int) -> dict[str, Tensor]:
        """See :class:`PlainGradients`."""
        part = super().gradient(step)
        summed = summed_by_name(part, self.ranks)
        return {name: summed[name].to(value.dtype) for name, value in part.items()}


def summed_by_name(parts: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The sums over all ranks, in float64, as one message."""
    flat = ranks.sum_in_order(torch.cat([value.double().flatten() for value in parts.values()]))
    pieces = torch.split(flat, [value.numel() for value in parts.values()])
    return {name: piece.view(value.shape) for (name, value), piece in zip(parts.items(), pieces, strict=True)}


class SharedLedger(Ledger):
    """The ledger as one rank has it.

    Guarantees
        ``append`` returns on no rank before rank 0 has the entry on the disk, and on none where the heads of the chains
        differ: what a rank draws afterwards is counted, by all of them alike.
    """

    def __init__(self, path: Path, entries: list[Entry], ranks: Ranks) -> None:
        super().__init__(path, entries)
        self._ranks = ranks
        self._agree()

    def append(self, kind: str, body: dict[str, Any]) -> None:
        """See :class:`Ledger`."""
        if self._ranks.is_first:
            super().append(kind, body)
        else:
            self.entries.append(Entry(len(self.entries), kind, body, self._last_hash))
        self._agree()

    def _agree(self) -> None:
        self._ranks.agree("the ledger", f"{len(self.entries)} lines, head {self._last_hash[:32]}")


def weights_digest(model: nn.Module) -> str:
    """SHA-256 (hexadecimal) over names, types, shapes and bits of all that the network holds."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def agree_on_weights(ranks: Ranks, model: nn.Module, when: str) -> None:
    """Stops all ranks unless their weights are equal to the bit."""
    if ranks.world > 1:
        ranks.agree(f"the weights {when}", weights_digest(model))
