"""A disk that fails in the middle of the work: full, read-only, or gone; and a small one that is truly full."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CODES = {"full": errno.ENOSPC, "read-only": errno.EROFS, "denied": errno.EACCES}
VANISHED = "vanished"


class DiskFault:
    """From the ``moment``-th change below ``root`` on, every change fails as ``kind`` says; ``changes`` counts them all.

    ``vanished`` moves the folder away at that moment, so that the system itself answers; ``torn`` lets half of a line through.
    """

    def __init__(self, root: Path, kind: str | None = None, moment: int = 0, *, torn: bool = False) -> None:
        self._torn = torn
        self._root = root
        self._kind = kind
        self._moment = moment
        self._away = root.with_name(root.name + ".away")
        self._patch = pytest.MonkeyPatch()
        self.changes = 0

    def __enter__(self) -> DiskFault:
        really_open, really_sync = builtins.open, os.fsync

        def opened(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                try:
                    self._change(file)
                except OSError:
                    if self._torn and "a" in mode:
                        with really_open(file, "ab") as handle:
                            handle.write(b'{"body":{"hal')
                    raise
            return really_open(file, mode, *given, **named)

        def synced(handle: int) -> None:
            self._change(Path(f"/proc/self/fd/{handle}").readlink(), named=False)
            really_sync(handle)

        self._patch.setattr(builtins, "open", opened)
        self._patch.setattr(os, "fsync", synced)
        for name in ("replace", "mkdir"):
            self._patch.setattr(os, name, self._guarded(getattr(os, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        if self._away.exists():
            self._away.rename(self._root)  # the disk is mounted again

    def _guarded(self, change: Any) -> Any:
        def guarded(path: Any, *given: Any, **named: Any) -> Any:
            self._change(path)
            return change(path, *given, **named)

        return guarded

    def _change(self, path: Any, *, named: bool = True) -> None:
        if isinstance(path, int) or not str(path).startswith(str(self._root)):
            return
        self.changes += 1
        if self._kind is None or self.changes <= self._moment:
            return
        if self._kind == VANISHED:
            if self._root.exists() and not self._away.exists():
                self._root.rename(self._away)
            return
        code = CODES[self._kind]
        raise OSError(code, os.strerror(code), *([str(path)] if named else []))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of ``size`` at ``folder``; the test is skipped where this machine does not let one mount it."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip() or 'mount failed'}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fills ``disk`` up to ``leave`` bytes; the file that fills it can be removed."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(bytes(max(0, free - leave)))
    return ballast
