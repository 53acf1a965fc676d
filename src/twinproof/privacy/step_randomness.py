"""What a step draws: its records by Poisson sampling, and its noise.

Both are functions of the run's key and the step alone, so that a resumed run repeats them without saved generator states.
On a CPU they come from SHAKE-256; on a GPU the host hands over one 256-bit key for each purpose and step, and the device
expands it with ChaCha20 (``compute/cipher.py``), because hashing on the host would take longer than the step itself.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.compute.cipher import cipher_keys, cipher_words
from twinproof.keys import Key


def poisson_sample(key: Key, step: int, *, records: int, sample_rate: float) -> NDArray[np.int64]:
    """Indices of the records that ``step`` takes.

    Guarantees
        Each record is taken iff its own 64-bit word lies below floor(rate * 2^64): independently, with probability at most
        ``sample_rate`` and less than 2^-64 below it. Which records were taken is as secret as the key.
    """
    threshold = math.floor(sample_rate * 2**64)
    if threshold >= 2**64:
        return np.arange(records, dtype=np.int64)
    return np.flatnonzero(key.words("sampling", step, count=records) < np.uint64(threshold)).astype(np.int64)


# Numbers that a GPU prepares at once: records' words for many steps, or normal numbers. Scratch of some hundred MB at most.
_WORDS_AT_ONCE = 1 << 24
_NORMALS_AT_ONCE = 1 << 20
_STEPS_AT_ONCE = 64
_HALF = 2**63


class HostRandomness:
    """From SHAKE-256, for a CPU."""

    def __init__(self, key: Key, *, records: int, sample_rate: float, parameters: int) -> None:
        self._key, self._records, self._sample_rate, self._parameters = key, records, sample_rate, parameters

    def sample(self, step: int, *, announced: int) -> Tensor:
        """The records of ``step``, in rising order (int64, on the device); steps before ``announced`` may be drawn with it.

        Every record is taken independently of the others, with probability at most the sample rate, and less than 2^-64 below.
        """
        return torch.from_numpy(poisson_sample(self._key, step, records=self._records, sample_rate=self._sample_rate))

    def normals(self, step: int) -> Tensor:
        """The standard normal numbers of ``step``, one for each parameter, in float64 on the device."""
        return torch.from_numpy(self._key.normals("noise", step, count=self._parameters))


class DeviceRandomness:
    """From ChaCha20 on the device, for several steps at once: their sizes then reach the host in one piece.

    A step that waited for the size of its own draw would leave the device idle. Any device will do, a CPU too, so that the
    law and its tests do not need a GPU.
    """

    def __init__(self, key: Key, device: torch.device, *, records: int, sample_rate: float, parameters: int) -> None:
        self._key, self._device, self._records, self._parameters = key, device, records, parameters
        self._threshold = math.floor(sample_rate * 2**64)
        self._drawn: dict[int, Tensor] = {}
        self._noise: dict[int, Tensor] = {}

    def sample(self, step: int, *, announced: int) -> Tensor:
        if self._threshold >= 2**64:
            return torch.arange(self._records, device=self._device)
        if step not in self._drawn:
            together = max(1, _WORDS_AT_ONCE // max(1, 2 * self._records))
            self._drawn = self._sampled(range(step, max(step + 1, min(step + together, announced))))
        return self._drawn[step]

    def normals(self, step: int) -> Tensor:
        if step not in self._noise:
            steps = range(step, step + max(1, min(_STEPS_AT_ONCE, _NORMALS_AT_ONCE // self._parameters)))
            words = self._words("noise on the device", steps, 4 * self._parameters).view(-1, 4)
            numbers = torch.cat([normals_from_words(part) for part in torch.split(words, _NORMALS_AT_ONCE)])
            self._noise = dict(zip(steps, numbers.view(len(steps), self._parameters), strict=True))
        return self._noise[step]

    def _sampled(self, steps: range) -> dict[int, Tensor]:
        halves = self._words("sampling on the device", steps, 2 * self._records).view(len(steps), self._records, 2)
        words = (halves[..., 1].long() << 32) | (halves[..., 0].long() & 0xFFFFFFFF)
        # torch compares signed words: turning the highest bit of both sides makes that the order of unsigned ones.
        taken = (words ^ -_HALF) < self._threshold - _HALF
        sizes = taken.sum(1).tolist()
        return dict(zip(steps, torch.split(taken.nonzero()[:, 1], sizes), strict=True))

    def _words(self, purpose: str, steps: range, count: int) -> Tensor:
        secrets = [self._key.stream(purpose, step, length=32) for step in steps]
        return cipher_words(cipher_keys(secrets, self._device), count).contiguous()


StepRandomness = HostRandomness | DeviceRandomness


def normals_from_words(words: Tensor) -> Tensor:
    """Standard normal numbers in float64 from four 32-bit words each: (n, 4) int32 -> (n,).

    As :meth:`Key.normals`: the quantile of a 127-bit tail probability in (0, 1/2], where floats are fine however small it is,
    and a sign. The lowest bit of the highest word is the sign, all others make up the probability.
    """
    low, second, third, high = (words.long() & 0xFFFFFFFF).unbind(1)
    small = third.double() * 2.0**-64 + second.double() * 2.0**-96 + (low.double() + 0.5) * 2.0**-128
    tail = (high >> 1).double() * 2.0**-32 + small
    quantiles: Tensor = torch.special.ndtri(tail)
    return quantiles * (1 - 2 * (high & 1)).double()


def step_randomness(key: Key, device: torch.device, *, records: int, sample_rate: float, parameters: int) -> StepRandomness:
    if device.type == "cpu":
        return HostRandomness(key, records=records, sample_rate=sample_rate, parameters=parameters)
    return DeviceRandomness(key, device, records=records, sample_rate=sample_rate, parameters=parameters)
