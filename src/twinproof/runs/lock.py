"""One process at a time works on a run: two would tear its ledger and its certificates."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twinproof.errors import RunError


@contextmanager
def exclusive(root: Path, *, waits: bool = False) -> Iterator[None]:
    """Holds the run directory for this process; the system lets go of it when the process ends, however it ends.

    Guarantees
        While one process is inside, another one that asks gets a ``RunError`` at once and touches nothing, or ``waits`` until
        it may go in. The lock lies on the directory itself, so that no file is left behind. A directory that vanishes while
        it is held ends the work as a fault of the system, whatever else it broke.
    """
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                "another process is working on this run",
                where=str(root),
                got="a directory that is locked",
                wanted="one process at a time",
                fix="wait for it to end",
            ) from error
        try:
            yield
        except RunError as error:
            _check_there(root, error)
            raise
        _check_there(root)
    finally:
        os.close(handle)


def _check_there(root: Path, error: RunError | None = None) -> None:
    if not root.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root)) from error
