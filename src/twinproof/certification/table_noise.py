"""Rounded noise on the CPU: random words looked up in the table, in pieces that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from twinproof.certification.noise_table import GUIDE_BITS, NoiseTable
from twinproof.certification.philox_words import BLOCK_WORDS, Stream, generator_at, padded, word_at, words_from

Floats = NDArray[np.float32]
# Numbers made at a time: so many that numpy's calls cost little beside their work, so few that they stay in a core's cache.
_PIECE = 65_536
_LOWER = (1 << (32 - GUIDE_BITS)) - 1
_SHIFT = np.uint32(32 - GUIDE_BITS)


def write_noise(table: NoiseTable, stream: Stream, first: int, out: Floats) -> Iterator[Floats]:
    """Writes draws ``first`` onwards, in steps of the grid, into ``out`` (draws, dimension); yields the rows just written.

    The caller works on each part while it is in the cache; a part is whole rows.

    Guarantees
        Coordinate c of draw j is the value of the 64-bit word whose first 32 bits are word number j * padded + c of the
        stream, and whose last are the same one of its refinement. How ``out`` is cut changes nothing.
    """
    draws, dimension = out.shape
    width = padded(dimension)
    rows = max(1, _PIECE // width)
    generator = generator_at(stream.words, first * width // BLOCK_WORDS)
    index = np.empty(rows * width, dtype=np.intp)
    spare = None if width == dimension else np.empty(rows * width, dtype=np.float32)
    for start in range(0, draws, rows):
        part = out[start : start + rows]
        words = words_from(generator, len(part) * width // BLOCK_WORDS)
        values = part.reshape(-1) if spare is None else spare[: len(words)]
        _look_up(table, stream, (first + start) * width, words, index[: len(words)], values)
        if spare is not None:
            part[:] = values.reshape(len(part), width)[:, :dimension]
        yield part


def _look_up(
    table: NoiseTable, stream: Stream, number: int, words: NDArray[np.uint32], index: NDArray[np.intp], values: Floats
) -> None:
    """The values of ``words``, of which the first is word ``number`` of its stream; ``index`` is a workspace."""
    np.right_shift(words, _SHIFT, out=index, casting="unsafe")
    # Every index is in range; "clip" only spares numpy a buffer.
    np.take(table.guide, index, out=values, mode="clip")
    unsure = np.flatnonzero(np.isnan(values))
    if not len(unsure):
        return
    among = words[unsure].astype(np.int64)
    counts = _counts(table, among, index[unsure])
    for at in np.flatnonzero(table.ladder[counts] == among):
        low = word_at(stream.refinement, number + int(unsure[at]))
        whole = np.uint64(int(among[at]) << 32 | low)
        counts[at] = np.searchsorted(table.boundaries, whole, side="right")
    values[unsure] = counts - table.reach


def _counts(table: NoiseTable, words: NDArray[np.int64], begin: NDArray[np.intp]) -> NDArray[np.int64]:
    """How many boundaries have first 32 bits that are at most each word; ``begin`` holds the words' first 16 bits.

    Among the words with the same beginning the boundaries lie almost evenly, so a straight line finds the place to within
    one; whatever it misses is searched for.
    """
    before, after = table.starts[begin], table.starts[begin + 1]
    counts = before + ((after - before) * (words & _LOWER) >> (32 - GUIDE_BITS))
    counts += table.ladder[counts + 1] <= words
    missed = np.flatnonzero((table.ladder[counts] > words) | (table.ladder[counts + 1] <= words))
    if len(missed):
        counts[missed] = np.searchsorted(table.ladder, words[missed], side="right") - 1
    return counts
