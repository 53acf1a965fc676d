"""One process at a time on a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from twinproof.errors import RunError
from twinproof.runs.layout import exclusive

HOLD = """
import sys, time
from pathlib import Path
from twinproof.runs.layout import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is working"), exclusive(tmp_path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with exclusive(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [], "a lock leaves nothing behind"


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), exclusive(tmp_path):
        raise ValueError("inside")
    with exclusive(tmp_path):
        pass
