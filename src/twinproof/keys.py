"""Secret randomness: one 256-bit key, and independent streams named by purpose and counter.

Everything random in a run is a function of its key, a purpose and a step number. That is what makes a killed run resume to
the same bits without saving generator states, and it makes the key the one secret: with it the noise can be subtracted.
The streams come from SHAKE-256 (FIPS 202), used as a keyed extendable-output function: seeing any number of its outputs does
not help to predict another one, which the Mersenne twister (32 bits of seed in torch on a CPU) cannot offer.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32


@dataclass(frozen=True)
class Key:
    """A 256-bit secret and its streams; never printed.

    Streams with different (purpose, counters) are computed from different inputs of SHAKE-256: every part is encoded with its
    length.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a key holds {KEY_BYTES} bytes, got {len(self.secret)}")

    @classmethod
    def from_system(cls) -> Key:
        """A fresh key from the operating system's entropy."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """The key of a user's seed: repeatable, known, and therefore worthless for privacy."""
        return cls(hashlib.sha256(f"twinproof seed {seed}".encode()).digest())

    def within(self, name: str) -> Key:
        """The key of one part of what this key is used for: its streams are independent of those of any other part."""
        return Key(self.stream(name, length=KEY_BYTES))

    def stream(self, purpose: str, *counters: int, length: int) -> bytes:
        """``length`` bytes that belong to ``purpose`` and ``counters`` alone."""
        name = purpose.encode()
        parts = [len(name).to_bytes(8, "little"), name, *(c.to_bytes(8, "little") for c in counters)]
        return hashlib.shake_256(self.secret + b"".join(parts)).digest(length)

    def words(self, purpose: str, *counters: int, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.frombuffer(self.stream(purpose, *counters, length=8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def seed(self, purpose: str, *counters: int) -> int:
        """A 63-bit seed for a generator whose output need not be secret (initial weights), or that takes it whole (a GPU's)."""
        return int.from_bytes(self.stream(purpose, *counters, length=8), "little") >> 1

    def normals(self, purpose: str, *counters: int, count: int) -> NDArray[np.float64]:
        """``count`` standard normal numbers in float64, by inversion of a 127-bit tail probability and a sign.

        The probability is taken from the lower tail, (0, 1/2], where floats are fine however small it is: the values lie
        close to each other out to 10 standard deviations, and end at 13. From a 52-bit uniform they would thin out from 5.3
        deviations on (one draw in ten million), so far that a sum plus such noise on the grid of ``Plan`` would give the
        sum away.
        """
        from scipy.special import ndtri

        high, low = self.words(purpose, *counters, count=2 * count).reshape(2, count)
        tail = (high >> np.uint64(1)).astype(np.float64) * 2.0**-64 + (low.astype(np.float64) + 0.5) * 2.0**-128
        sign = np.where(high & np.uint64(1), 1.0, -1.0)
        return np.asarray(sign * ndtri(tail), dtype=np.float64)
