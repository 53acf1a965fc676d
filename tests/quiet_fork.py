"""A fork that no other thread of this process can spoil.

A thread that is ending frees its buffers inside MKL under spin locks, after Python has joined it. A child forked in that moment
inherits a lock that nobody will ever release, and hangs in its first product of matrices (about one fork of twenty after a
training on eight threads).
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_LOOK = 0.01
_QUIET_LOOKS = 3
_LONGEST = 30.0


def fork() -> int:
    """``os.fork`` in a moment in which all other threads sleep and none is ending."""
    wait_for_threads()
    return os.fork()


def wait_for_threads(tasks: Path = Path("/proc/self/task")) -> None:
    """Returns when the other threads are the same in several looks and asleep in each; at once where there is no such list."""
    if not tasks.exists():
        return
    ends = time.monotonic() + _LONGEST
    seen = [_others(tasks)]
    while seen[-1] and not _quiet(seen):
        assert time.monotonic() < ends, f"threads of this process do not come to rest: {seen[-1]}"
        time.sleep(_LOOK)
        seen = [*seen[1 - _QUIET_LOOKS :], _others(tasks)]


def _quiet(seen: list[dict[str, str]]) -> bool:
    return len(seen) == _QUIET_LOOKS and all(look == seen[0] for look in seen) and set(seen[0].values()) == {"S"}


def _others(tasks: Path) -> dict[str, str]:
    """The state of every other thread, as the kernel has it."""
    states = {}
    for task in tasks.iterdir():
        if task.name != str(threading.get_native_id()):
            try:
                states[task.name] = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):  # it has ended since
                continue
    return states
