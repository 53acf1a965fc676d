"""States of torch's generators, decided by all bits of a key.

Noise on a record's copies and in a network's layers decides, with the record, what gradient is clipped. Two neighbouring data
sets draw it for other rows of a pass, so the clipped sum is bounded in law, not number by number: that noise has to be as
hard to guess as the noise on the sum. ``manual_seed`` would not do on a CPU: of its 64 bits the Mersenne twister takes 32, and
so few can be tried out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from twinproof.keys import Key

# The words of the twister's state, and where they begin among the bytes that torch keeps of it.
_WORDS, _FIRST = 624, 24


def seed_generator(generator: torch.Generator, key: Key, purpose: str, *counters: int) -> None:
    """Puts ``generator`` into the state that belongs to ``purpose`` and ``counters`` alone.

    Guarantees
        On a CPU the whole state, 19,937 bits, is the key's stream; on a GPU the counter generator gets a 63-bit seed of it.
    """
    if generator.device.type != "cpu":
        generator.manual_seed(key.seed(purpose, *counters))
        return
    words = np.frombuffer(key.stream(purpose, *counters, length=4 * _WORDS), dtype="<u4")
    state = torch.Generator().manual_seed(0).get_state()
    state.numpy()[_FIRST : _FIRST + 8 * _WORDS] = words.astype("<u8").view(np.uint8)
    generator.set_state(state)


def seed_default_generators(device: torch.device, key: Key, purpose: str, *counters: int) -> None:
    """The same for the generators that layers draw from: the host's, and that of ``device`` where it is a GPU."""
    seed_generator(torch.default_generator, key, purpose, *counters)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key.seed(purpose, *counters))


# Layers draw from torch's own generators, of which a process has one for each device.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def own_generators(device: torch.device) -> Iterator[None]:
    """Torch's own generators belong to this thread inside and are restored afterwards; other threads that ask for them wait."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
