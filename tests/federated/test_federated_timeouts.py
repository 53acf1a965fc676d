"""Times that nobody can wait for."""

from __future__ import annotations

import math
from threading import TIMEOUT_MAX, Event

import pytest

from twinproof.errors import ConfigError
from twinproof.federated.agreement import check_timeout
from twinproof.federated.local import LocalParties


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_no_clock_waits_so_long(seconds: float) -> None:
    with pytest.raises(ConfigError, match="this time for a round"):
        check_timeout(seconds)
    with pytest.raises(ConfigError, match="this time for a round"):
        LocalParties({}, timeout=seconds)


@pytest.mark.parametrize("seconds", [None, 0.001, 600.0, TIMEOUT_MAX])
def test_others_are_waited_for(seconds: float | None) -> None:
    check_timeout(seconds)
    done = Event()
    done.set()
    assert done.wait(seconds)
