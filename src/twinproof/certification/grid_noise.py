"""Smoothing noise on a power-of-two grid, so that the certificate is about the numbers really used.

Float addition is not translation invariant, and that has been turned into false certificates (Voracek and Hein, ICLR 2023).
Here the noise is a multiple of a grid step h = 2^-k and so is what it is added to: at the input an integer number of stored
levels (h <= 1), behind the first layer the layer's answer rounded to the grid. Their sum is exact in float32. For x on the
grid, x + round_h(s Z) = round_h(x + s Z), so the network sees f(round_h(x + s Z)): a function of a continuous shift of the
noise, for which the theorems hold. At the input the claim covers every input that can be stored. Dividing by the number of
levels, and everything else that the network does, is part of the base classifier. docs/decisions/0002-noise-on-a-grid.md

Scales S that are drawn at random for every row are certified for the worst draw: the sampler adds noise of the least scales s,
and the network adds, from its own randomness, what is missing to scales S. That part is independent of the input and of the
sampler, so that it is post-processing.

The noise's law is a table of 64-bit boundaries. A draw is then an integer operation on random bits: the same on every device,
to the bit, and its law is known exactly, because the probability of a cell is the distance of two integers divided by 2^64.
The generator is Philox4x64-10 (Salmon et al. 2011) as numpy has it: a block cipher on a counter. One block is 4 words of 64
bits, taken here as 8 of 32 bits, the lower half first. Block b of a stream is the cipher of counter b + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.noise import Law, Spread, standard_noise

GUIDE_BITS = 16
_WORD = 2.0**64


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """A symmetric law on -reach..reach: the value is the number of boundaries <= U, minus ``reach``.

    ``boundaries`` are 2 * reach growing integers; U is a uniform 64-bit word.
    """

    reach: int
    boundaries: NDArray[np.uint64]

    @classmethod
    def of_cells(cls, outwards: NDArray[np.float64]) -> NoiseTable:
        """The table whose cells -reach, ..., -1 have these probabilities; their mirror images have the same, 0 has the rest.

        Each probability is rounded to a multiple of 2^-64, which changes it by at most 2^-65; an empty cell at the end may
        count 1 instead. Zero's cell takes what the others leave, so that its error is at most the sum of theirs.
        """
        tails = np.cumsum(np.rint(outwards * _WORD).astype(np.uint64))
        # A fine grid's outermost cells are empty; a boundary of 0 would have its mirror image at 2^64, which is not a word.
        below = np.maximum(tails, np.uint64(1))
        above = np.uint64(0) - below[::-1]
        return cls(len(outwards), np.concatenate((below, above)))

    @cached_property
    def high_words(self) -> NDArray[np.uint32]:
        """The first 32 bits of each boundary: they decide alone unless a word's first 32 bits are equal to one of them."""
        return (self.boundaries >> np.uint64(32)).astype(np.uint32)

    @cached_property
    def ladder(self) -> NDArray[np.int64]:
        """``high_words`` between two ends that no word reaches: entry c is at most a word exactly if c boundaries may be."""
        return np.concatenate(([-1], self.high_words.astype(np.int64), [1 << 32]))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """How many boundaries lie before the words that begin with each 16 bits; one entry more for the end."""
        firsts = np.arange((1 << GUIDE_BITS) + 1, dtype=np.int64) << (32 - GUIDE_BITS)
        return np.searchsorted(self.high_words.astype(np.int64), firsts, side="left").astype(np.int64)

    @cached_property
    def guide(self) -> NDArray[np.float32]:
        """The value by the word's first 16 bits; NaN where a boundary lies among the words that begin with them."""
        starts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - GUIDE_BITS)
        first = self.values(starts)
        last = self.values(starts | np.uint64((1 << (64 - GUIDE_BITS)) - 1))
        return np.where(first == last, first, np.nan).astype(np.float32)

    def values(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The definition: which cell each 64-bit word falls into, from -reach to reach."""
        return np.searchsorted(self.boundaries, words, side="right").astype(np.int64) - self.reach


CUTS: Mapping[Law, float] = {Law.GAUSSIAN: 8.5, Law.LAPLACE: 36.0}
"""No draw goes beyond so many deviations (rounded up to a whole cell); true ones do with probability 2e-17 and 2.4e-16."""


def table_distance(law: Law, steps: float) -> float:
    """A bound on the total variation distance between ``noise_table(law, steps)`` and the rounded law.

    Guarantees
        It is 2^-49 plus 2^-64 for each cell. Proof: a distance is half the sum of the cells' errors. The middle cell takes what
        the others leave, so that its error is at most the sum of theirs, and that sum is the bound. Let u = 2^-53 and c the
        middle of a cell of width d = 1/steps, in deviations. In float64 d carries a relative error of 2u (with the product that
        makes ``steps``) and c one of 3u.
        Gaussian, d <= 1/64: the probability d phi(c) (1 + He2 d^2/24 + He4 d^4/1920 + He6 d^6/322560), He the Hermite
        polynomials at c, lacks terms of d^8, whose sum over all cells is below 1e-20. The exponent c^2/2 errs by 3.5 c^2 u; the
        exponential adds at most 3u, the constant, the products and the factor in brackets 8u. Weighted with the cells'
        probabilities, c^2 counts as 1: 14.5u. Beyond the cut lie 0.2u.
        Laplace, d <= 1: the probability is exactly e^-c sinh(d/2). e^-c has a relative error of 3cu; the exponential adds at
        most 3u, the hyperbolic sine 3u and what d brings to it (its slope times d, over itself, is at most 1.1) 2.2u, the
        product 1u. Weighted, c counts as at most 1: 12.2u. Beyond the cut lie e^-36 < 2.1u.
        Together both are below 16u = 2^-49. Rounding a cell to a multiple of 2^-64 adds at most 2^-65, and the same for the
        cells that are empty.
    """
    return 2.0**-49 + 2 * CUTS[law] * steps * 2.0**-64


# A table of a fine grid on 65,536 levels takes tens of megabytes; a process certifies with one or two of them.
@lru_cache(maxsize=4)
def noise_table(law: Law, steps: float) -> NoiseTable:
    """round(steps * xi) for standard noise xi of ``law``; ``steps`` is at least 64 for Gaussian and 1 for Laplace noise."""
    width = 1.0 / steps
    middles = np.arange(math.ceil(CUTS[law] * steps), 0, -1, dtype=np.float64) * width
    if law is Law.LAPLACE:
        return NoiseTable.of_cells(np.exp(-middles) * math.sinh(width / 2))
    c, d = middles * middles, width * width
    he2, he4, he6 = c - 1, (c - 6) * c + 3, ((c - 15) * c + 45) * c - 15
    correction = d * (he2 / 24 + d * (he4 / 1920 + d * he6 / 322560))
    density = np.exp(-c / 2) * (width / math.sqrt(2 * math.pi))
    return NoiseTable.of_cells(density * (1 + correction))


BLOCK_WORDS = 8
_KEY_BYTES = 16
_KEYS_TOGETHER = 1024


@dataclass(frozen=True)
class Stream:
    """The two 128-bit cipher keys of one noise stream: the words that are drawn, and those that decide ties.

    Cipher keys are different parts of outputs of SHAKE-256 (``Key.stream``): for each purpose one output holds the keys of
    1,024 inputs after each other, those of the words and of their refinement.
    """

    words: int
    refinement: int

    @classmethod
    def named(cls, key: Key, purpose: str, index: int) -> Stream:
        block, place = divmod(index, _KEYS_TOGETHER)
        first = 2 * _KEY_BYTES * place
        both = _keys_together(key, purpose, block)[first : first + 2 * _KEY_BYTES]
        return cls(int.from_bytes(both[:_KEY_BYTES], "little"), int.from_bytes(both[_KEY_BYTES:], "little"))


@lru_cache(maxsize=64)
def _keys_together(key: Key, purpose: str, block: int) -> bytes:
    """The cipher keys of 1,024 inputs: hashing for each one alone took half of the time of deciding a target radius."""
    return key.stream(purpose, block, length=2 * _KEY_BYTES * _KEYS_TOGETHER)


def padded(dimension: int) -> int:
    """Words set aside for one vector: whole blocks, so that every draw begins with a block of its own."""
    return -(-dimension // BLOCK_WORDS) * BLOCK_WORDS


def words_from(generator: np.random.Philox, blocks: int) -> NDArray[np.uint32]:
    """The next ``blocks`` blocks of a generator, as 32-bit words."""
    raw = np.asarray(generator.random_raw(blocks * BLOCK_WORDS // 2))
    return raw.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def generator_at(cipher_key: int, block: int) -> np.random.Philox:
    """A generator whose next output is block ``block``: numpy counts up before it ciphers."""
    return np.random.Philox(key=cipher_key, counter=block)


def word_at(cipher_key: int, number: int) -> int:
    block, place = divmod(number, BLOCK_WORDS)
    return int(words_from(generator_at(cipher_key, block), 1)[place])


Floats = NDArray[np.float32]
# Numbers made at a time: enough to make numpy's calls cheap, few enough to stay in a core's cache.
_PIECE = 65_536
_LOWER = (1 << (32 - GUIDE_BITS)) - 1
_SHIFT = np.uint32(32 - GUIDE_BITS)


def write_noise(table: NoiseTable, stream: Stream, first: int, out: Floats) -> Iterator[Floats]:
    """Writes draws ``first`` onwards, in steps of the grid, into ``out`` (draws, dimension); yields the rows just written.

    The caller works on each part, which is whole rows, while it is in the cache. Coordinate c of draw j is the value of the
    64-bit word whose first 32 bits are word number j * padded + c of the stream, and whose last are the same one of its
    refinement. How ``out`` is cut changes nothing.
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
    one; what it misses is searched for.
    """
    before, after = table.starts[begin], table.starts[begin + 1]
    counts = before + ((after - before) * (words & _LOWER) >> (32 - GUIDE_BITS))
    counts += table.ladder[counts + 1] <= words
    missed = np.flatnonzero((table.ladder[counts] > words) | (table.ladder[counts + 1] <= words))
    if len(missed):
        counts[missed] = np.searchsorted(table.ladder, words[missed], side="right") - 1
    return counts


# Grid steps per deviation, at least: what the network sees has a variance larger by 1/12 of a step squared, which is a
# 50,000th, and the proof holds for any grid.
_STEPS_PER_SIGMA = 64
# Behind a layer a step costs radius (``layer_noise``): as many as a table in the cache, or at most in memory, allows.
_MOST_STEPS = 2**16
# The share of the deviation that rounding may cost where the table allows it.
_WANTED_SLACK = 0.01
_FLOAT32_EXACT = 2.0**24
_HALF = 0.5
_SMALLEST_SIGMA = 1e-6  # below it no grid fits float32, and its step would underflow long before sigma does
# Far above the error of the float64 functions that turn votes into a radius, far below the weight of a vote.
_ARITHMETIC = 2.0**-36


@dataclass(frozen=True)
class GridNoise:
    """Noise of ``law`` and deviation ``sigma`` (Laplace: scale), rounded to ``grid``; ``input_noise``, ``layer_noise`` make it.

    It is added to numbers of at most ``largest`` in magnitude, in units of which one unit of sigma has ``levels``: the stored
    levels of inputs in [0, 1], or 1 where the numbers are the layer's own.

    Guarantees
        - Every draw plus every such number on the grid is exact in float32 (checked when the record is made).
        - Draw j for input i is a function of (key, purpose, i, j) alone, the same to the bit on every device.
        - ``tau`` bounds the total variation between the law of one drawn vector and the rounded noise, given ideal random
          bits: coordinates add up, and the tables prove the bound for one. It also pays for the float64 functions that turn
          votes into a radius.
    """

    sigma: float
    levels: int
    law: Law
    grid: float
    largest: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if self.levels < 1:
            raise ConfigError("inputs need stored levels", where="levels", got=self.levels, wanted="at least 1, e.g. 255")
        if self.sigma < _SMALLEST_SIGMA or not _is_exact(self.law, self.steps, self.largest / self.grid):
            raise ConfigError(
                "input plus noise would not be exact in float32",
                where="sigma",
                got=f"sigma {self.sigma} on {self.levels} levels",
                wanted="a sigma between about 1e-4 and 10",
            )

    @property
    def steps(self) -> float:
        """Grid steps for one deviation: at least 64."""
        return self.sigma * self.levels / self.grid

    @property
    def table(self) -> NoiseTable:
        """Which multiple of the grid each 64-bit word stands for."""
        return noise_table(self.law, self.steps)

    def tau(self, dimension: int) -> float:
        """Bound on the total variation distance per draw of a vector of ``dimension`` coordinates, and on the arithmetic."""
        return dimension * table_distance(self.law, self.steps) + _ARITHMETIC

    def draws(self, key: Key, purpose: str, index: int, first: int, count: int, dimension: int, device: torch.device) -> Tensor:
        """Draws from number ``first`` on for input ``index``: (count, dimension) float32 multiples of the grid, in levels."""
        noise = np.empty((count, dimension), dtype=np.float32)
        for part in write_noise(self.table, Stream.named(key, purpose, index), first, noise):
            part *= np.float32(self.grid)
        return torch.from_numpy(noise).to(device)


def input_noise(sigma: float, levels: int, law: Law = Law.GAUSSIAN) -> GridNoise:
    """Noise of deviation ``sigma`` in input units ([0, 1]) on inputs of ``levels`` stored levels.

    The grid is the coarsest one with at least 64 steps per deviation, and never coarser than one level.
    """
    _check_sigma(sigma)
    scale = max(sigma, _SMALLEST_SIGMA) * max(levels, 1)
    grid = min(1.0, 2.0 ** math.floor(math.log2(scale / _STEPS_PER_SIGMA)))
    return GridNoise(sigma, levels, law, grid, float(levels))


def layer_noise(sigma: float, law: Law, dimension: int, largest: float) -> GridNoise:
    """Noise on ``dimension`` numbers of a layer, each at most ``largest`` in magnitude before they are rounded to the grid.

    Rounding moves two vectors apart by at most sqrt(dimension) steps in l2 and ``dimension`` steps in l1, which is taken off
    every radius: the grid is the coarsest one that costs at most a hundredth of the deviation, as far as the largest table
    and exact sums in float32 allow it.
    """
    _check_sigma(sigma)
    cost = math.sqrt(dimension) if law is Law.GAUSSIAN else float(dimension)
    grid = _fine_grid(sigma, law, cost, largest)
    return GridNoise(sigma, 1, law, grid, largest + grid)


def joint_noise(scale: float, levels: int, dimension: int, law: Law = Law.LAPLACE) -> GridNoise:
    """Noise of ``scale`` (input units) for inputs of ``levels`` stored levels and for a layer of ``dimension`` numbers.

    The layer's noise is the same law on the same grid in other units; so the grid is as fine as rounding that layer asks for
    (``layer_noise``). Input plus noise is less than 2^23 steps: the whole number of steps can still be recovered after a
    division by the number of levels in float32.
    """
    _check_sigma(scale)
    sigma = max(scale, _SMALLEST_SIGMA) * max(levels, 1)
    grid = min(1.0, _fine_grid(sigma, law, float(dimension), float(levels), room=_HALF))
    if not _is_exact(law, sigma / grid, levels / grid, room=_HALF):
        # Either the input is too many steps of a fine grid, or the draws are too many of one as coarse as a level.
        # The largest is a scale, in input units, whose draws still fit half of float32's whole numbers in steps of one level.
        largest = (_HALF * _FLOAT32_EXACT - levels - 1) / (CUTS[law] * levels)
        wrong, wanted = ("small", "about 1e-4 or more") if scale < 1 else ("large", f"about {largest:.1g} or less")
        raise ConfigError(
            f"the noise on the input is too {wrong} for noise at two places",
            where="input_noise",
            got=f"scale {scale} on {levels} levels",
            wanted=f"a scale of {wanted}",
        )
    return GridNoise(scale, levels, law, grid, float(levels))


def _fine_grid(sigma: float, law: Law, cost: float, largest: float, room: float = 1.0) -> float:
    """The coarsest grid of which ``cost`` steps are a hundredth of the deviation, within what table and float32 allow."""
    steps = min(max(cost / _WANTED_SLACK, _STEPS_PER_SIGMA), _MOST_STEPS)
    grid = 2.0 ** math.floor(math.log2(sigma / steps))
    if sigma / grid > _MOST_STEPS:
        grid *= 2
    # The numbers' own rounding is up to one step more.
    while not _is_exact(law, sigma / grid, largest / grid + 1, room) and sigma / grid >= 2 * _STEPS_PER_SIGMA:
        grid *= 2
    return grid


def _is_exact(law: Law, steps: float, largest: float, room: float = 1.0) -> bool:
    """Whether numbers of up to ``largest`` steps plus any draw are whole numbers of steps in a share of those of float32."""
    return largest + CUTS[law] * steps + 1 < room * _FLOAT32_EXACT


def _check_sigma(sigma: float) -> None:
    if not (sigma > 0 and math.isfinite(sigma)):
        raise ConfigError("the smoothing noise cannot be used", where="sigma", got=sigma, wanted="a finite number > 0")


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
    """Inside, torch's generator gives numbers of ``key``, ``purpose`` and ``numbers``; its state is restored afterwards.

    Not for several threads at once: they share the generator.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(key.seed(f"{purpose}-spread", *numbers))
        yield
