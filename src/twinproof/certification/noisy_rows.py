"""Noisy copies of many inputs as one long list of rows, any part of which can be made on the device at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from twinproof.certification.grid_noise import GridNoise
from twinproof.certification.philox_words import Stream, padded
from twinproof.certification.table_noise import write_noise
from twinproof.layers.noise import Law
from twinproof.randomness import Key
from twinproof.triton_kernels import kernels_run

_LOW = (1 << 64) - 1


class NoisyRows:
    """Draws ``after`` to ``draws`` of each input, input by input: row r is draw ``after + r % span`` of input ``r // span``.

    Guarantees
        A row is (stored + noise) / levels in float32, the sum exact and the quotient correctly rounded: a function of the
        stored input plus grid noise and of nothing else, and the same to the bit on every device and in every batch.
    """

    def __init__(
        self,
        noise: GridNoise,
        key: Key,
        purpose: str,
        indices: Sequence[int],
        stored: Tensor,
        draws: int,
        *,
        after: int = 0,
    ) -> None:
        """``stored`` holds one row of levels for each of ``indices``, on the device on which the rows are wanted."""
        self.noise, self.after, self.span = noise, after, draws - after
        self.stored = stored.reshape(len(indices), -1).contiguous()
        self.streams = [Stream.named(key, purpose, index) for index in indices]
        self.fill: Callable[[int, Tensor], None] = self._fill_on_host
        if stored.device.type == "cuda":
            self.fill = self._kernel() or self._fill_through_host

    def __len__(self) -> int:
        return len(self.streams) * self.span

    @property
    def dimension(self) -> int:
        """Coordinates of one input."""
        return int(self.stored.shape[1])

    def owners(self, first: int, count: int) -> Tensor:
        """Which input, by position, each of ``count`` rows from ``first`` on belongs to."""
        rows = torch.arange(first, first + count, device=self.stored.device)
        return rows.div_(self.span, rounding_mode="floor")

    def _fill_on_host(self, first: int, out: Tensor) -> None:
        """Writes rows ``first`` onwards into ``out`` (rows, dimension)."""
        rows, stored = out.numpy(), self.stored.cpu().numpy()
        table, grid, levels = self.noise.table, np.float32(self.noise.grid), np.float32(self.noise.levels)
        done = 0
        while done < len(rows):
            owner, place = divmod(first + done, self.span)
            here = rows[done : done + self.span - place]
            for part in write_noise(table, self.streams[owner], self.after + place, here):
                if grid != 1:
                    part *= grid
                part += stored[owner]
                if levels != 1:
                    part /= levels
            done += len(here)

    def _fill_through_host(self, first: int, out: Tensor) -> None:
        made = torch.empty(out.shape, dtype=torch.float32)
        self._fill_on_host(first, made)
        out.copy_(made)

    def _kernel(self) -> Callable[[int, Tensor], None] | None:
        """The same on a GPU; None where Triton kernels do not run."""
        device = self.stored.device
        if not kernels_run(device):
            return None
        from twinproof.certification.noise_kernel import write_noisy_rows

        keys = torch.from_numpy(_cipher_keys(self.streams)).to(device)
        tables = _tables_on(self.noise, device)

        def fill(first: int, out: Tensor) -> None:
            # Triton launches on the current GPU, which need not be the one of the tensors.
            with torch.cuda.device(device):
                write_noisy_rows(
                    out,
                    self.stored,
                    keys,
                    tables,
                    row=first,
                    span=self.span,
                    after=self.after,
                    width=padded(self.dimension),
                    steps=self.noise.steps,
                    grid=self.noise.grid,
                    levels=self.noise.levels,
                    laplace=self.noise.law is Law.LAPLACE,
                )

        return fill


def _cipher_keys(streams: Sequence[Stream]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Four 64-bit numbers for each stream, the lower half of each cipher key first; signed, because torch has no others."""
    halves = [
        (stream.words & _LOW, stream.words >> 64, stream.refinement & _LOW, stream.refinement >> 64) for stream in streams
    ]
    return np.array(halves, dtype=np.uint64).view(np.int64)


@lru_cache(maxsize=2)
def _tables_on(noise: GridNoise, device: torch.device) -> tuple[Tensor, Tensor]:
    table = noise.table
    high, whole = table.high_words.view(np.int32), table.boundaries.view(np.int64)
    return torch.from_numpy(high).to(device), torch.from_numpy(whole).to(device)
