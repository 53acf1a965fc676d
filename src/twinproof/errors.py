"""Errors that tell a person what happened, where, what was got, what was wanted and what to do.

Every mistake a user can make ends in a :class:`UserError`; the command line prints it and exits with 2. A check that did its
work and found something wrong ends in :class:`CheckFailed`; the command line exits with 1.
"""

from __future__ import annotations


class TwinproofError(Exception):
    """Base of all errors raised on purpose; the five fields are the public contract (``--json`` prints them)."""

    def __init__(self, what: str, *, where: str = "", got: object = "", wanted: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.got = str(got)
        self.wanted = wanted
        self.fix = fix
        super().__init__(self.message())

    def message(self) -> str:
        """All fields that are set, in reading order, as one short block of text."""
        lines = [self.what]
        lines += [
            f"  {name}: {value}"
            for name, value in (("where", self.where), ("got", self.got), ("wanted", self.wanted), ("fix", self.fix))
            if value
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str]:
        """The same fields for machines; the keys never change their meaning."""
        return {"what": self.what, "where": self.where, "got": self.got, "wanted": self.wanted, "fix": self.fix}


class UserError(TwinproofError):
    """Something the user can mend: a wrong value, a broken file, a model that cannot be trained privately."""


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
    """A verification ran to its end and found a lie."""
