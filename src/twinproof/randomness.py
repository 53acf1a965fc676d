"""Secret randomness: one 256-bit key, and independent streams named by purpose and counter.

Everything random in a run is a function of its key, a purpose and a step number. That is what makes a killed run resume to
the same bits without saving generator states, and it makes the key the one secret: whoever holds it can subtract the noise.
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
    """A 256-bit secret and the streams that grow from it; never printed.

    Guarantees
        Streams with different (purpose, counters) are computed from different inputs of SHAKE-256: every part is encoded
        with its length, so no two of them can run together.
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

    def stream(self, purpose: str, *counters: int, length: int) -> bytes:
        """``length`` bytes that belong to ``purpose`` and ``counters`` alone."""
        name = purpose.encode()
        parts = [len(name).to_bytes(8, "little"), name, *(c.to_bytes(8, "little") for c in counters)]
        return hashlib.shake_256(self.secret + b"".join(parts)).digest(length)

    def words(self, purpose: str, *counters: int, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.frombuffer(self.stream(purpose, *counters, length=8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def seed(self, purpose: str, *counters: int) -> int:
        """A 63-bit seed for a generator whose output need not be secret (initial weights, augmentation)."""
        return int.from_bytes(self.stream(purpose, *counters, length=8), "little") >> 1

    def normals(self, purpose: str, *counters: int, count: int) -> NDArray[np.float64]:
        """``count`` standard normal numbers by inversion of 52-bit uniforms, in float64.

        52 bits, because (word + 1/2) / 2**52 is then exact in float64: with 53 the largest word would round to 1 and give
        infinity. The law differs from the normal one by the discretisation alone; the tails end at 8.2 standard deviations,
        beyond which a true normal number falls with probability 2.2e-16.
        """
        from scipy.special import ndtri

        words = self.words(purpose, *counters, count=count) >> np.uint64(12)
        return np.asarray(ndtri((words.astype(np.float64) + 0.5) * 2.0**-52), dtype=np.float64)
