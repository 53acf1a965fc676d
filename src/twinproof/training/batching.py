"""How the records of a step come to the network: passes of one size, and copies from noise that belongs to the pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.randomness import Key
from twinproof.torch_seeding import own_generators, seed_default_generators, seed_generator
from twinproof.training.augmentation import Augmentation
from twinproof.training.records import DeviceRecords, Pass


@dataclass(frozen=True)
class Batching:
    """The records, how their copies are made, and how many records one pass holds.

    ``layers_draw`` False says that no layer of the network draws numbers, so that none have to be seeded.
    """

    records: DeviceRecords
    augmentation: Augmentation
    physical_batch: int
    key: Key
    layers_draw: bool = True

    def passes(self, indices: Tensor) -> Iterator[Pass]:
        """The records ``indices``, pass by pass."""
        return self.records.passes(indices, self.physical_batch)

    def seed_augmentation(self, generator: torch.Generator, step: int, number: int) -> None:
        """Puts ``generator`` where the noise of this step and pass alone begins."""
        seed_generator(generator, self.key, "augmentation", step, number)

    def copies(self, inputs: Tensor, step: int, number: int) -> Tensor:
        """The copies of a pass."""
        generator = torch.Generator(self.records.device)
        self.seed_augmentation(generator, step, number)
        return self.augmentation(inputs, generator)

    @contextmanager
    def layers_seeded(self, step: int, number: int) -> Iterator[None]:
        """Layers that draw (dropout) take their numbers from the run's key, so that a resumed run draws the same."""
        if not self.layers_draw:
            yield
            return
        device = self.records.device
        with own_generators(device):
            seed_default_generators(device, self.key, "layers", step, number)
            yield
