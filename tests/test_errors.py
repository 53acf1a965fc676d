"""Errors tell what, where, got, wanted and fix, to people and to machines."""

from __future__ import annotations

import copy
import errno
import os

import pytest

from twinproof.errors import (
    CheckFailed,
    ConfigError,
    DataError,
    MissingExtra,
    ModelError,
    OutOfMemory,
    RunError,
    SystemFault,
    TwinproofError,
    UserError,
    fault_of,
    system_faults,
)

KEYS = ["what", "where", "got", "wanted", "fix"]


def full(kind: type[TwinproofError]) -> TwinproofError:
    return kind("it broke", where="here", got=3.5, wanted="4", fix="add a half")


@pytest.mark.parametrize("kind", [ConfigError, DataError, ModelError, RunError, UserError, CheckFailed, SystemFault])
def test_every_error_has_the_five_fields(kind: type[TwinproofError]) -> None:
    error = full(kind)
    assert list(error.as_dict()) == KEYS
    assert error.as_dict() == {"what": "it broke", "where": "here", "got": "3.5", "wanted": "4", "fix": "add a half"}
    assert str(error) == "it broke\n  where: here\n  got: 3.5\n  wanted: 4\n  fix: add a half"
    assert error.message() == str(error)


def test_exit_codes_tell_mistakes_failed_checks_and_faults_apart() -> None:
    kinds = (ConfigError, DataError, ModelError, RunError, MissingExtra)
    assert all(issubclass(kind, UserError) and kind.exit_code == 2 for kind in kinds)
    assert [kind.exit_code for kind in (CheckFailed, SystemFault, OutOfMemory)] == [1, 3, 3]
    assert issubclass(CheckFailed, TwinproofError)
    missing = MissingExtra("attacks", "art", "an attack of another library")
    assert list(missing.as_dict()) == KEYS
    assert "twinproof[attacks]" in missing.fix
    assert "an attack of another library needs the package 'art'" in str(missing)


@pytest.mark.parametrize("kind", [RunError, SystemFault])
def test_all_fields_travel_between_processes(kind: type[TwinproofError]) -> None:
    error = copy.copy(full(kind))  # the way of a process pool: __reduce__
    assert (type(error), error.as_dict(), str(error)) == (kind, full(kind).as_dict(), str(full(kind)))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "mount it writable"),
        (errno.EACCES, "permission"),
        (errno.EPERM, "permission"),
        (errno.ENOENT, "bring it back"),
        (errno.EIO, "check the disk"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENODEV, "see what it reports"),
    ],
)
def test_the_systems_codes_have_their_own_advice(code: int, words: str) -> None:
    fault = fault_of(OSError(code, os.strerror(code), "runs/x"))
    assert isinstance(fault, SystemFault)
    assert (fault.where, fault.got) == ("runs/x", os.strerror(code))
    assert words in fault.fix


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((OSError(code, os.strerror(code), "x"), RunError) for code in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR)),
        (MemoryError(), OutOfMemory),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), OutOfMemory),
        (OSError(errno.ENOMEM, "no"), OutOfMemory),
        (RuntimeError("shapes differ"), type(None)),
        (ValueError("x"), type(None)),
    ],
)
def test_paths_memory_and_our_own_mistakes_are_told_apart(error: Exception, kind: type[object]) -> None:
    assert type(fault_of(error)) is kind


def test_the_outermost_work_says_how_to_go_on() -> None:
    @system_faults("run inner {name}")
    def inner(name: str) -> None:
        raise OSError(errno.ENOSPC, "full", name)

    @system_faults("run outer {place}")
    def outer(place: str) -> None:
        inner("a")

    with pytest.raises(SystemFault) as raised:
        inner("a")
    assert raised.value.fix == "free some space on that disk; then run inner a"
    with pytest.raises(SystemFault) as raised:
        outer("b")
    assert raised.value.fix == "free some space on that disk; then run outer b"
    assert raised.value.where == "a"


def test_what_no_terminal_can_show_is_escaped_and_cut() -> None:
    error = DataError("it broke", where="folder/\udcff.csv", got="9" * 200_000)
    assert error.where == r"folder/\udcff.csv"
    assert len(error.got) < 10_000
    assert "(200000 characters)" in error.got
    str(error).encode()
