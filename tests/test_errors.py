"""Errors tell what, where, got, wanted and fix, to people and to machines."""

from __future__ import annotations

import pytest

from twinproof.errors import (
    CheckFailed,
    ConfigError,
    DataError,
    MissingExtra,
    ModelError,
    RunError,
    TwinproofError,
    UserError,
)

KEYS = ["what", "where", "got", "wanted", "fix"]


def full(kind: type[TwinproofError]) -> TwinproofError:
    return kind("it broke", where="here", got=3.5, wanted="4", fix="add a half")


@pytest.mark.parametrize("kind", [ConfigError, DataError, ModelError, RunError, UserError, CheckFailed])
def test_every_error_has_the_five_fields(kind: type[TwinproofError]) -> None:
    error = full(kind)
    assert list(error.as_dict()) == KEYS
    assert error.as_dict() == {"what": "it broke", "where": "here", "got": "3.5", "wanted": "4", "fix": "add a half"}
    assert str(error) == "it broke\n  where: here\n  got: 3.5\n  wanted: 4\n  fix: add a half"
    assert error.message() == str(error)


def test_empty_fields_are_kept_for_machines_and_left_out_for_people() -> None:
    error = UserError("it broke", got=0)
    assert list(error.as_dict()) == KEYS
    assert all(isinstance(value, str) for value in error.as_dict().values())
    assert str(error) == "it broke\n  got: 0"


def test_mistakes_and_failed_checks_are_told_apart() -> None:
    """The command line exits with 2 for the first and with 1 for the second."""
    for kind in (ConfigError, DataError, ModelError, RunError, MissingExtra):
        assert issubclass(kind, UserError)
    assert not issubclass(CheckFailed, UserError)
    assert issubclass(CheckFailed, TwinproofError)


def test_a_missing_extra_names_itself() -> None:
    error = MissingExtra("tables", "pyarrow", "reading Parquet")
    assert list(error.as_dict()) == KEYS
    assert "twinproof[tables]" in error.fix
    assert "pyarrow" in str(error)
    assert "reading Parquet" in error.what
