"""Errors that tell a person what happened, where, what was got, what was wanted and what to do.

Every mistake a user can make ends in a :class:`UserError`; the command line prints it and exits with 2. A check that did its
work and found something wrong ends in :class:`CheckFailed` (exit code 1). What the system does, a full disk for example, ends
in a :class:`SystemFault` (exit code 3).
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LONGEST = 10_000


class TwinproofError(Exception):
    """Base of all errors raised on purpose; the five fields are the public contract (``--json`` prints them)."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", got: object = "", wanted: str = "", fix: str = "") -> None:
        self.what, self.where, self.got, self.wanted, self.fix = map(_printable, (what, where, str(got), wanted, fix))
        super().__init__(self.message())

    def __reduce__(self) -> tuple[Callable[..., TwinproofError], tuple[type[TwinproofError], dict[str, object]]]:
        """All fields travel between processes, not the message alone."""
        return _restored, (type(self), self.__dict__)

    def message(self) -> str:
        """All fields that are set, in reading order, as one short block of text."""
        fields = self.as_dict()
        return "\n".join([fields.pop("what"), *(f"  {name}: {value}" for name, value in fields.items() if value)])

    def as_dict(self) -> dict[str, str]:
        """The same fields for machines; the keys never change their meaning."""
        return {"what": self.what, "where": self.where, "got": self.got, "wanted": self.wanted, "fix": self.fix}


def _restored(kind: type[TwinproofError], fields: dict[str, object]) -> TwinproofError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = (error.message(),)
    return error


def _printable(text: str) -> str:
    """Text that any terminal and JSON file can hold: bytes that are not UTF-8 are escaped, the middle of a long text is cut."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} ... ({len(text)} characters) ... {text[-_LONGEST // 4 :]}"


class UserError(TwinproofError):
    """Something the user can mend: a wrong value, a broken file, a model that cannot be trained privately."""

    exit_code = 2


class ConfigError(UserError):
    """A setting has a value that cannot be used."""


class DataError(UserError):
    """A data set is missing, broken, or does not fit together."""


class ModelError(UserError):
    """A network contains something that cannot be made private or certified; names the module's path."""


class RunError(UserError):
    """A run directory is missing, incomplete, or not in the state the command needs."""


class MissingExtra(UserError):
    """An optional dependency is needed for what was asked; names the extra to install."""

    def __init__(self, extra: str, package: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed",
            where=f"optional dependency group {extra!r}",
            got="not installed",
            wanted=package,
            fix=f"pip install 'twinproof[{extra}]'",
        )


class CheckFailed(TwinproofError):
    """A verification ran to its end and found that something is wrong."""


class SystemFault(TwinproofError):
    """The system failed, not the user: a full or read-only disk, a folder that vanished, no permission, no memory.

    What was written before is whole; ``fix`` says how to go on once the fault is gone.
    """

    exit_code = 3

    def going_on(self, go_on: str) -> SystemFault:
        """The same fault, which also says how to go on; who calls the caller may say it better."""
        advice = self.fix.partition(_THEN)[0]
        return type(self)(self.what, where=self.where, got=self.got, wanted=self.wanted, fix=advice + _THEN + go_on)


class OutOfMemory(SystemFault):
    """There is not enough memory, in the machine or on its GPU."""


_THEN = "; then "
# errno -> what happened, what is wanted, what to do about it.
_FAULTS = {
    errno.ENOSPC: ("the disk is full", "free space on the disk", "free some space on that disk"),
    errno.EDQUOT: ("the disk quota is used up", "free space in the quota", "free some space, or raise the quota"),
    errno.EFBIG: ("the file is larger than allowed", "a larger limit", "raise the limit on file sizes (ulimit -f)"),
    errno.EROFS: ("the file system is read-only", "a writable file system", "mount it writable"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        ("permission denied", "permission to read and write", "give this user the permission (chmod, chown)"),
    ),
    errno.ENOENT: ("a file or folder has vanished", "the folder as it was", "bring it back (is its disk mounted?)"),
    errno.ESTALE: ("a file or folder has vanished", "the folder as it was", "mount its network disk again"),
    errno.EIO: ("the disk reports an error", "a disk that works", "check the disk"),
    errno.EMFILE: ("too many files are open", "a larger limit", "raise the limit on open files (ulimit -n)"),
    errno.ENFILE: ("too many files are open", "a larger limit", "close other programs"),
    errno.ENOMEM: ("the memory is full", "more free memory", "close other programs, or use smaller batches"),
}
# These say that a path cannot be what it is used as: a mistake in the call.
_PATH_MISTAKES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.EINVAL)
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "failed to allocate", "cannot allocate memory")


def fault_of(error: BaseException, *, where: str = "") -> TwinproofError | None:
    """The one translation of the system's errors: an OSError or a lack of memory as a ``SystemFault``, None for other errors.

    A path that cannot be used as what it was given for (a file as a folder, a name that is too long) is a ``RunError``.
    """
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _says_no_memory(str(error))):
        error = OSError(errno.ENOMEM, str(error).partition("\n")[0] or os.strerror(errno.ENOMEM))
    if not isinstance(error, OSError):
        return None
    place = where or ("" if error.filename is None else os.fsdecode(error.filename))
    got = error.strerror or str(error) or type(error).__name__
    if error.errno in _PATH_MISTAKES:
        return RunError("this path cannot be used", where=place, got=got, wanted="another path", fix="check the path")
    what, wanted, advice = _FAULTS.get(error.errno or 0, ("the system reports an error", "", "see what it reports"))
    kind = OutOfMemory if error.errno == errno.ENOMEM else SystemFault
    return kind(what, where=place, got=got, wanted=wanted, fix=advice)


def _says_no_memory(text: str) -> bool:
    return any(words in text.lower() for words in _OUT_OF_MEMORY)


def system_faults(go_on: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorates work that writes: the system's errors leave it as a ``SystemFault`` that says how to go on.

    ``go_on`` may name arguments of the function, as ``{out}`` or ``{run.root}``. The outermost decorated function decides.
    """

    def decorate(work: Callable[_P, _T]) -> Callable[_P, _T]:
        signature = inspect.signature(work)

        @functools.wraps(work)
        def guarded(*given: _P.args, **named: _P.kwargs) -> _T:
            try:
                return work(*given, **named)
            except (OSError, MemoryError, RuntimeError, SystemFault) as error:
                fault = error if isinstance(error, SystemFault) else fault_of(error)
                if isinstance(fault, SystemFault):
                    raise fault.going_on(go_on.format(**signature.bind(*given, **named).arguments)) from error
                if fault is not None:
                    raise fault from error
                raise

        return guarded

    return decorate
