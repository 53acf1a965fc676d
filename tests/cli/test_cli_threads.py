"""The command waits passively, unless its user says otherwise: torch reads this when it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "wanted"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_passively_unless_told_otherwise(given: str | None, wanted: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    script = "import sys, os, twinproof.cli.main; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [wanted, "False"]
