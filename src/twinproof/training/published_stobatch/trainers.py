"""Algorithm 4's local trainers: each has fixed batches of its own, and every step picks some of them at random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.compute.seeds import seed_generator
from twinproof.errors import ConfigError
from twinproof.keys import Key

_PAIR = 2


@dataclass(frozen=True)
class Turn:
    """What a trainer does in one step: the records it takes as they are, those it attacks, and the key of its own draws."""

    benign: Tensor
    attacked: Tensor
    key: Key


@dataclass(frozen=True)
class Part:
    """The rows of one of ``workers`` workers, among which a trainer's batches are cut into parts of nearly the same size."""

    number: int = 0
    workers: int = 1

    def of(self, rows: Tensor) -> Tensor:
        """This worker's rows: all of them where it is the only one."""
        return torch.tensor_split(rows, self.workers)[self.number]


WHOLE_BATCH = Part()


@dataclass(frozen=True)
class LocalTrainers:
    """``count`` trainers that share out the fixed batches, of which every step picks ``per_step``.

    A trainer of two batches takes the first as it is and attacks the second, as Algorithm 4 prints it (where there are
    N/(2m) trainers). One that has more goes from batch to batch as Algorithm 1 does, and so does the only one there is.

    Guarantees
        One trainer alone is Algorithm 1, bit for bit. Who is picked, and what a trainer draws, follows from the key and the
        step: all ranks know it, and so does a resumed training.
    """

    count: int = 1
    per_step: int = 1

    def refuse(self, records: int, batch: int) -> None:
        """Refuses trainers of whom one would not have two batches, and steps that want more of them than there are."""
        batches = records // batch
        if self.count * _PAIR > batches and self.count > 1:
            raise ConfigError(
                "there are more trainers than pairs of batches",
                where="trainers.count",
                got=f"{self.count}, with {batches} batches of {batch} records",
                wanted=f"at most {max(1, batches // _PAIR)}: each takes one batch as it is and attacks another",
                fix="set a smaller batch_size, or fewer trainers",
            )
        if self.per_step > self.count:
            raise ConfigError(
                "a step picks more trainers than there are",
                where="trainers.per_step",
                got=self.per_step,
                wanted=f"at most {self.count}, the number of trainers",
            )

    def turns(self, batches: Tensor, step: int, key: Key) -> list[Turn]:
        """Those of the trainers that step ``step`` picks, in their order; ``batches`` (B, m) are all there are."""
        held = len(batches) // self.count
        walks = self.count == 1 or held > _PAIR
        places = (step % held, (step + 1) % held) if walks else (0, 1)
        found = []
        for trainer in self._picked(step, key):
            first, second = (batches[trainer * held + place] for place in places)
            found.append(Turn(first, second, _key_of(trainer, key)))
        return found

    def workers(self, world: int, batch: int) -> int:
        """Workers of each trainer, so that ``world`` ranks get equally many parts; none is left without a row of a third."""
        return min(world // math.gcd(world, self.per_step), max(1, batch // 3))

    def _picked(self, step: int, key: Key) -> list[int]:
        if self.per_step == self.count:
            return list(range(self.count))
        generator = torch.Generator()
        seed_generator(generator, key, "printed: trainers", step)
        return sorted(torch.randperm(self.count, generator=generator)[: self.per_step].tolist())


ONE_TRAINER = LocalTrainers()
"""Algorithm 1."""


def _key_of(trainer: int, key: Key) -> Key:
    """The first trainer's is the run's own, so that it does what Algorithm 1 does."""
    return key if trainer == 0 else key.within(f"printed: trainer {trainer}")
