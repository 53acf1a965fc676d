"""How long a party may take for a round: a number of seconds that a clock can wait for."""

from __future__ import annotations

from threading import TIMEOUT_MAX

from twinproof.errors import ConfigError


def check_timeout(seconds: float | None) -> None:
    """Refuses a time that nobody can wait for; None is as long as it takes."""
    if seconds is not None and not 0 < seconds <= TIMEOUT_MAX:  # not a number is in no range
        raise ConfigError(
            "a party cannot be given this time for a round",
            where="timeout",
            got=seconds,
            wanted=f"a number of seconds above 0, at most {TIMEOUT_MAX:.0f}",
            fix="leave it out for the usual time",
        )
